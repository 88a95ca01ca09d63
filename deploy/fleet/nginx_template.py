"""The text of nginx's configuration; `deploy.fleet.proxy` puts values in place of `@names@`."""

TEMPLATE = """\
# Written by deploy/fleet/proxy.py, which says why; change it there.
# Paths without a leading slash are relative to the prefix: nginx -p DIRECTORY -c THIS-FILE
daemon off;
worker_processes 2;
pid nginx.pid;
error_log stderr error;  # names every refused request

events {
    worker_connections 1024;
}

http {
    access_log off;  # a device asks every three seconds
    server_tokens off;
    client_body_temp_path temporary-body;
    proxy_temp_path temporary-proxy;
    fastcgi_temp_path temporary-fastcgi;
    uwsgi_temp_path temporary-uwsgi;
    scgi_temp_path temporary-scgi;

    # A device names its public key in every call. The SuperLink reads a whole request before it
    # looks at key and signature, so a call with a key that is not a device's ends here, unread.
    map_hash_bucket_size 1024;
    map $http_flwr_public_key $device {
        default "";
        include "@devices@";  # `wildflower fleet` writes it
    }
    map $device $refusal {
        default "";
        "" "unknown";
        "~^revoked " "revoked";
    }

    # More than this is answered with 503, after which a SuperNode waits and tries again.
    limit_conn_zone $binary_remote_addr zone=addresses:4m;
    limit_conn_zone $device zone=devices:4m;
    limit_req_zone $binary_remote_addr zone=calls:4m rate=@address_rate@r/s;

    server {
        listen @listen@ ssl;
        ssl_certificate "@certificate@";
        ssl_certificate_key "@key@";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:sessions:4m;
        keepalive_timeout 75s;
        keepalive_requests 100000;

        # The server is known by its certificate, not by its address.
        set $superlink "@superlink@";
        @resolver@
        proxy_ssl_verify on;
        proxy_ssl_verify_depth 3;
        proxy_ssl_trusted_certificate "@ca@";
        proxy_ssl_server_name on;
        proxy_ssl_name "@superlink_name@";

        # Calls and answers wait here, on disk, until they are whole: whoever stalls costs the
        # SuperLink nothing. No call waits for news, so two minutes are many; a SuperNode gives up
        # after 30 s and asks again, as it does after 502, 503 and 504.
        client_max_body_size @body_mib@m;
        client_header_timeout 10s;
        client_body_timeout 20s;
        send_timeout 20s;
        lingering_time 10s;
        reset_timedout_connection on;
        proxy_request_buffering on;
        proxy_buffering on;
        limit_conn addresses @address_calls@;
        limit_conn devices @device_calls@;
        limit_req zone=calls burst=@address_burst@;  # delayed, for a few seconds at most
        proxy_connect_timeout 5s;
        proxy_send_timeout 120s;
        proxy_read_timeout 120s;

        # One connection a call: a kept one that the SuperLink closes under a call would lose a
        # message, because a message is handed out once.
        proxy_http_version 1.1;
        proxy_set_header Connection close;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header X-Forwarded-Proto https;

        # The path is put together anew from the list, so no spelling of it leads elsewhere.
        location ~ "^/v1/fleet/(?<call>@calls@)\\z" {
            limit_except POST {
                deny all;
            }
            if ($refusal) {
                rewrite ^ /refused/$call last;
            }
            proxy_pass https://$superlink/v1/fleet/$call;
        }

        # Refused with an entry in the log, in the words that a SuperNode shows: as the SuperLink
        # does it, 412 at the start, and later 401, after which a SuperNode ends in order.
        location = /refused/activate-node {
            internal;
            deny all;
            error_page 403 = @refused-start;
        }
        location /refused/ {
            internal;
            deny all;
            error_page 403 = @refused-call;
        }
        location @refused-start {
            default_type application/json;
            return 412 '@refused_start@';
        }
        location @refused-call {
            default_type application/json;
            return 401 '@refused_call@';
        }

        location = /health {
            limit_except GET {
                deny all;
            }
            proxy_pass https://$superlink/health;
        }

        location / {
            deny all;
        }

        # Refused with an entry in the log, but as 404: a SuperNode takes 403 for the end of a run
        # and hangs, 404 for a mistake and ends.
        error_page 403 =404 @absent;
        location @absent {
            return 404;
        }
    }
}
"""
