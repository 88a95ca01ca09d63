"""Style sheet and script of the report, as strings: the app bundle cannot carry .css or .js."""

STYLE = """
:root{color-scheme:light dark;--paper:#fcfbf8;--card:#fff;--ink:#20242c;--soft:#5d6472;
--faint:#8d93a0;
--rule:#e6e3db;--grid:#ecebe5;--band:#20242c14;--m0:#4169c4;--m1:#c8553d;--m2:#c08a1e;
--m3:#4f8a5f;
--m4:#8a63ac;--m5:#2b8a97;--m9:#8d93a0;--up:#c8553d;--down:#4169c4;--good:#3c7a4d;--bad:#b23b2a;
--goodbg:#e7f1e8;--badbg:#f9e6e2;--waitbg:#f7efd9;--wait:#8a6210}
@media (prefers-color-scheme:dark){:root{--paper:#15171c;--card:#1b1e25;--ink:#eceae4;
--soft:#a7adba;
--faint:#7c8391;--rule:#2d323c;--grid:#282c35;--band:#eceae41c;--m0:#7f9ff0;--m1:#ec8169;
--m2:#dcae4c;
--m3:#7dbb8c;--m4:#b796d6;--m5:#5fbac6;--m9:#8d93a0;--up:#ec8169;--down:#7f9ff0;--good:#8fd0a0;
--bad:#f29a8a;--goodbg:#20342a;--badbg:#402420;--waitbg:#3a311b;--wait:#e2bd68}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1200px;margin:0 auto;padding:40px 32px 64px}
h1{font-size:34px;line-height:1.15;letter-spacing:-.02em;font-weight:650;margin:6px 0 4px}
h1 span{color:var(--faint);font-weight:400}
h2{font-size:19px;letter-spacing:-.01em;font-weight:650;margin:52px 0 6px}
h3{font-size:15px;font-weight:650;margin:0}
p{margin:0}small{color:var(--faint);font-size:12px}
.eyebrow{display:flex;align-items:center;gap:9px;color:var(--soft);font-size:13px;
letter-spacing:.02em}
.eyebrow svg{width:22px;height:22px}
.runname{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;color:var(--soft);
overflow-wrap:anywhere}
.pill{display:inline-block;font-size:12px;font-weight:600;padding:2px 10px;border-radius:99px;
background:var(--waitbg);color:var(--wait)}
.pill.completed{background:var(--goodbg);color:var(--good)}.pill.failed{background:var(--badbg);
color:var(--bad)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:14px 28px;
margin:24px 0 0}
.facts.head{grid-template-columns:repeat(auto-fill,minmax(165px,1fr));
border-top:1px solid var(--rule);padding-top:16px}
dt{font-size:12px;color:var(--faint)}dd{margin:0;overflow-wrap:anywhere}
.note,figcaption p,.void{color:var(--soft);font-size:13px}.note{max-width:82ch}
.none{color:var(--faint);font-style:italic;font-weight:400}
.alert{background:var(--waitbg);color:var(--wait);padding:10px 16px;border-radius:8px;
margin:24px 0 0;font-size:14px}
.alert.failed{background:var(--badbg);color:var(--bad)}
.keys{display:grid;grid-template-columns:repeat(4,1fr);gap:1px;background:var(--rule);
border:1px solid var(--rule);
border-radius:12px;overflow:hidden;margin:28px 0 10px}
.keys div{background:var(--card);padding:15px 18px 14px}
.keys dd{font-size:23px;line-height:1.25;letter-spacing:-.01em;font-weight:600}
.keys dd.lead{color:var(--down)}
.keys dd .none{font-size:16px}
.keys p{font-size:12px;line-height:1.4;color:var(--soft);margin-top:3px}p.but,.keys p.but{
color:var(--wait);font-weight:600}
.charts{display:grid;grid-template-columns:1fr 1fr;gap:20px;margin-top:16px}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:12px;
padding:18px 18px 14px;
min-width:0;break-inside:avoid}
figure>svg{display:block;width:100%;height:auto;margin-top:8px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:8px 0 0;padding:0;
font-size:12.5px;
color:var(--soft)}
.legend li{display:flex;align-items:center;gap:7px;overflow-wrap:anywhere}
.k{display:inline-block;flex:none;width:16px;height:0;border-top:2px solid var(--c,currentColor)}
.k.mean{border-top-width:3px}.k.band{height:10px;border:0;background:var(--band);
outline:1px solid var(--rule)}
.k.bar{width:10px;height:10px;border:0;border-radius:2px;background:var(--c)}
.k.val,.k.other,.k.extra,.k.rest{border-top-style:dashed}
.m0{--c:var(--m0)}.m1{--c:var(--m1)}.m2{--c:var(--m2)}.m3{--c:var(--m3)}.m4{--c:var(--m4)}.m5{
--c:var(--m5)}
.m9{--c:var(--m9)}.up{--c:var(--up)}.down{--c:var(--down)}.rest{--c:var(--faint)}.mean{
--c:var(--ink)}
.val{--c:var(--soft)}.other{--c:var(--faint)}.e0{--c:var(--m2)}.e1{--c:var(--m5)}.e2{
--c:var(--m1)}
.wall{--c:var(--ink)}.compute{--c:var(--m2)}
svg text{fill:var(--soft);font-size:12px;font-family:inherit}svg text.title{fill:var(--faint)}
.change{stroke:var(--m1);stroke-dasharray:2 3;stroke-width:1.4}.k.change{border-top:2px dotted
var(--m1)}.grid{stroke:var(--grid)}.axis{stroke:var(--faint)}.band{fill:var(--band)}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.line.client{stroke-width:1.1;opacity:.5}.line.mean{stroke-width:2.8}
.line.val,.line.other,.line.extra,.line.rest{stroke-dasharray:5 4;stroke-width:1.6}
.hit{fill:none;stroke:transparent;stroke-width:9;pointer-events:stroke}
.hover:hover .line{stroke-width:3;opacity:1}
circle.mean{fill:var(--card);stroke:var(--ink);stroke-width:1.8}circle.dot{fill:var(--c)}rect.bar{
fill:var(--c)}
rect.bar.wall{opacity:.8}
.strips{display:grid;grid-template-columns:minmax(90px,auto) 1fr auto;gap:0 16px;
align-items:center;margin-top:14px}
.strips .name{line-height:1.25;padding:7px 0;overflow-wrap:anywhere}.strips small{display:block}
.strips .value{font-weight:600;text-align:right}
.strip{position:relative;height:26px;background:linear-gradient(var(--grid),
var(--grid)) center/100% 1px no-repeat}
.strip i{position:absolute;top:8px;width:10px;height:10px;margin-left:-5px;border-radius:50%;
background:var(--c);opacity:.55}
.strip b{position:absolute;top:1px;width:3px;height:24px;margin-left:-1.5px;border-radius:2px;
background:var(--ink)}
.scale{grid-column:2;display:flex;justify-content:space-between;font-size:12px;color:var(--faint)}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{font-weight:600;color:var(--soft);font-size:12.5px}
th,td{text-align:right;padding:6px 10px;border-bottom:1px solid var(--rule);white-space:nowrap}
th.left,td.left,.pairs th,.pairs td{text-align:left}
tbody tr:last-child>*{border-bottom:0}tbody tr:hover{background:var(--band)}
.scroll{overflow:auto;max-height:640px;border:1px solid var(--rule);border-radius:12px;
background:var(--card);margin-top:12px}
.scroll thead th{position:sticky;top:0;background:var(--card);box-shadow:inset 0 -1px var(--rule);
z-index:1}
th button{all:unset;cursor:pointer}th button:hover,th button:focus-visible{color:var(--ink);
text-decoration:underline}
th[aria-sort=ascending] button:after{content:" ↑"}th[aria-sort=descending] button:after{
content:" ↓"}
.clients td.last{font-weight:600}
.classes{vertical-align:-4px;margin-right:7px;fill:var(--soft)}.slots{stroke:var(--rule)}
.key{display:inline-block;width:8px;height:8px;border-radius:50%;background:var(--c);
margin-right:8px}
.reason{white-space:pre-wrap;overflow-wrap:anywhere;min-width:260px}
.wide{overflow-x:auto}.plain{margin-top:8px}.plain th:first-child{text-align:left}
.pairs{margin-top:8px}.pairs th{width:1%;padding-left:0}.pairs td{white-space:normal;
overflow-wrap:anywhere}
.pairs th{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
details{margin-top:14px}summary{cursor:pointer;color:var(--soft);font-weight:600}
footer{margin-top:56px;padding-top:16px;border-top:1px solid var(--rule);font-size:12.5px;
color:var(--faint)}
@media (max-width:980px){.keys{grid-template-columns:1fr 1fr}.charts{grid-template-columns:1fr}}
@media (max-width:600px){main{padding:24px 16px 48px}h1{font-size:27px}.keys div{
padding:12px 13px}
.keys dd{font-size:19px}figure{padding:14px 12px 12px}figure>svg text{font-size:18px}
.strips{gap:0 10px;grid-template-columns:36% 1fr auto}
.strip{margin:0 5px}.facts,.facts.head{grid-template-columns:1fr 1fr}.plain th,.plain td{
padding:6px 5px}}
@media print{:root{color-scheme:light}body{font-size:11px}main{padding:0;max-width:none}
.scroll{max-height:none;overflow:visible}.clients{font-size:8.5px}th,td{padding:3px 4px}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""

# Rows whose value is unknown (data-s="") stay at the end in both directions.
SCRIPT = """
document.querySelectorAll('table.clients').forEach(function(table){
var body=table.tBodies[0],heads=[].slice.call(table.tHead.rows[0].cells);
function key(row,at){var cell=row.cells[at],s=cell.dataset.s;
if(s===undefined)s=cell.textContent;if(s==='')return null;var n=Number(s);return isNaN(n)?s:n}
heads.forEach(function(head,at){var button=head.querySelector('button');if(!button)return;
button.addEventListener('click',function(){
var up=head.getAttribute('aria-sort')!=='ascending';
heads.forEach(function(h){h.removeAttribute('aria-sort')});
head.setAttribute('aria-sort',up?'ascending':'descending');
[].slice.call(body.rows).map(function(row){return[key(row,at),row]}).sort(function(a,b){
if(a[0]===null||b[0]===null)return(a[0]===null)-(b[0]===null);
var numbers=typeof a[0]==='number'&&typeof b[0]==='number';
var d=numbers?a[0]-b[0]:String(a[0]).localeCompare(String(b[0]));
return up?d:-d}).forEach(function(pair){body.appendChild(pair[1])})})})});
addEventListener('beforeprint',function(){
document.querySelectorAll('details').forEach(function(d){d.open=true})});
"""

LOGO = (
    '<svg viewBox="-12 -12 24 24" aria-hidden="true"><g fill="var(--m0)">'
    + "".join(
        f'<ellipse cy="-6.4" rx="3.5" ry="5" transform="rotate({72 * i})"/>' for i in range(5)
    )
    + '</g><circle r="2.9" fill="var(--m2)"/></svg>'
)
