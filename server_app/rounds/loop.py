"""The round loop: registration, rounds, records, checkpoints, resume."""

from __future__ import annotations

import secrets
from contextlib import nullcontext

from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy.result import Result

from server_app import console
from server_app.console import say
from server_app.records.checkpoints import Checkpoints
from server_app.records.kept_states import delete_states
from server_app.records.local_run import check_local_clients, check_local_run
from server_app.records.payload_files import DIRECTORY as PAYLOADS
from server_app.records.payload_files import PayloadFiles
from server_app.records.privacy_ledger import PrivacyLedger, missing_accountant
from server_app.records.recorder import Recorder
from server_app.records.round_result import RoundResult
from server_app.records.run_directory import (
    COMPLETED,
    FAILED,
    RunDirectory,
    early_end,
    write_atomically,
)
from server_app.records.soundness import unsound_rounds
from server_app.rounds.exchange import Exchange, RunError
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.notes import RoundNotes
from server_app.rounds.participants import choose_participants
from server_app.rounds.reply_limit import ReplyLimit
from server_app.rounds.roster import Roster
from server_app.rounds.send_order import SendOrder, short_thread_turns
from server_app.rounds.server_scoring import ServerScoring
from server_app.rounds.transport import Transport, is_simulation
from server_app.rounds.worker_grid import with_workers
from server_app.tracking import Tracking, missing_tracker
from strategies.base.files import NotWrittenError
from strategies.base.messages import Control
from strategies.base.options import ConfigError
from strategies.base.round_files import prune_rounds, round_file
from strategies.base.run_config import RunConfig
from strategies.base.schedule import History, Schedule, load_schedule


def run_rounds(run: RunConfig, grid: Grid) -> Result:
    """Run a method from the registration to its report, resuming where the run-config says so.

    Whatever ends the run early, its records stay, config.json says "failed" or "interrupted" and
    why, and a report is written of what there is. A resume that is refused changes nothing.
    """
    server, schedule = MethodServer(run), load_schedule(run)
    if missing := missing_tracker(run.trackers) or missing_accountant(run.privacy):
        raise ConfigError(missing)
    check_local_run(run.run_root, run.local_run)
    directory = RunDirectory.open(run)
    if is_simulation(grid):
        grid = with_workers(grid)
    loop = RoundLoop(server, schedule, grid, directory)
    turns = short_thread_turns() if is_simulation(grid) else nullcontext()
    try:
        with turns, loop.reply_limit.applied():
            result = loop.execute()
    except BaseException as error:
        status, reason = early_end(error, directory.name)
        if not directory.begun:
            say(f"wildflower: not resumed, run {directory.name} is as it was: {reason}")
            raise
        say(f"wildflower: the run {'failed' if status == FAILED else 'was interrupted'}: {reason}")
        try:
            directory.set_status(status, reason=reason)
            loop.report()
            loop.tracking.finish(status)
        except NotWrittenError as second:  # by the same full disk; what was written stays
            say(f"warning: {second}")
        raise
    finally:
        loop.notes.meter.close()
        directory.release()
    return result


class RoundLoop:
    """One run: the server half does the method, this does everything around it."""

    def __init__(
        self, server: MethodServer, schedule: Schedule, grid: Grid, directory: RunDirectory
    ) -> None:
        run = server.run
        self.server = server
        self.schedule = schedule
        self.run = run
        self.directory = directory
        self.recorder = Recorder(directory.path)
        self.checkpoints = Checkpoints(directory.path / "checkpoints", run.keep_checkpoints)
        self.payloads = PayloadFiles(directory.path / PAYLOADS, run.keep_payloads)
        self.reply_limit = ReplyLimit(grid, run.max_reply_mb)
        self.transport = Transport(grid, self.reply_limit)
        # A message outlives its round's deadline a little, so that the deadline decides.
        self.messages = MessageFactory(directory.name, {}, run.round_timeout + 30, run.wire)
        self.notes = RoundNotes(server, self.recorder, directory.path)
        barred = self.notes.quarantine.clients
        self.roster = Roster(server, self.transport, self.messages, directory.refuse, barred)
        self.privacy = PrivacyLedger(directory.path, run.privacy, devices=server.devices)
        self.send_order = SendOrder()
        self.scoring = ServerScoring(server)
        self.tracking = Tracking(run.trackers, directory.path)
        self.session = secrets.token_hex(8)
        self.resumed_at = 0

    def execute(self) -> Result:
        """Run all rounds that are left and return Flower's result object."""
        say(f"wildflower: run {self.directory.name} in {self.directory.path}")
        say(console.settings(self.run, self.server.remarks))
        self.roster.assemble()
        check_local_clients(self.run.run_root, self.run.local_run, self.server.clients)
        self.server.begin()
        done = self._take_up()
        self.notes.left_out(done, self.roster.problems)
        say(console.clients_table(self.server.clients))
        for line in console.data_lines(self.server.clients):
            say(line)
        self.scoring.begin()
        if self.run.sample_fraction < 1 and self.run.evaluates_untrained:
            say("clients that have not trained yet are evaluated with their initial models")
        result = Result()
        for number in range(done + 1, self.run.num_rounds + 1):
            outcome = self._round(number)
            result.train_metrics_clientapp[number] = MetricRecord(dict(outcome.server_metrics))
            if (scores := outcome.server_scores) is not None:
                result.evaluate_metrics_serverapp[number] = MetricRecord(dict(scores.values))
            reason = self.schedule.should_stop(self.server.context, self._history())
            if reason is not None:
                say(f"stopping after round {number}: {reason}")
                break
        self._close()
        return result

    def _take_up(self) -> int:
        """Go on from the newest checkpoint, or begin; return the number of finished rounds.

        What may refuse a resume has been asked when the first file is changed.
        """
        done = self._load() if self.directory.resumed else 0
        if done > self.run.num_rounds:
            raise ConfigError(
                f"num-rounds = {self.run.num_rounds}: expected at least {done}, the number of "
                "rounds that the run to resume has finished"
            )
        self.recorder.begin(done, self.directory.texts(self.server.clients))
        self.directory.begun = True
        self.checkpoints.set_aside_damaged()
        self.checkpoints.drop_after(done)
        self.payloads.drop_after(done)
        (self.directory.path / "summary.json").unlink(missing_ok=True)  # of an earlier end
        if self.directory.resumed:
            say(f"resuming after round {done}")
        self.resumed_at = self.server.server_round = done
        self.notes.begin()
        self.tracking.begin(self.directory.info, done)
        return done

    def _load(self) -> int:
        """Load the checkpoint to resume from, and return its round; 0 if there is none."""
        rounds, chosen = self.checkpoints.rounds(), self.run.resume_round
        if chosen and chosen not in rounds:
            there = ", ".join(map(str, rounds)) or "none"
            raise ConfigError(
                f"resume-round = {chosen}: expected a round that has a checkpoint ({there}), or 0"
            )
        if chosen:
            self.checkpoints.load(chosen, self.server.state)
            return chosen
        done = self.checkpoints.load_newest(self.server.state, unsound_rounds(self.directory.path))
        if 0 < done < max(self.checkpoints.rounds(), default=0):
            say(
                f"warning: training diverged after round {done}, so that is where the run goes on; "
                f"resume-round = N takes another of the rounds {rounds}"
            )
        return done

    def report(self) -> None:
        """Write report.html from whatever records there are, unless the run shall have none."""
        if not self.run.report or not (self.directory.path / "metrics.csv").is_file():
            return
        # Loads pandas and jinja2, which a run needs only once there are results.
        from server_app.report import write_report

        path = write_report(self.directory.path)
        say(f"report: {path}")

    def _round(self, number: int) -> RoundResult:
        known = self.server.clients
        self.server.server_round, self.server.exchange = number, 1
        self.roster.invite()
        online = self.roster.wait_online()
        self.notes.meter.online(len(online))
        participants = choose_participants(
            self.schedule, self.server.context, online, self._history()
        )
        evaluates = self.run.evaluates_in(number)
        tests, measuring = self._measuring(online) if evaluates else (set(), [])
        others = [i for i in measuring if i not in set(participants)]
        outcome = self._exchanges(number, participants, others, tests)
        if evaluates:
            self.scoring.add(outcome)
        infos = self.server.clients
        if infos != known:
            self.directory.write_clients(infos)
            self.notes.who_is_unusual()
            say(f"joined: clients {sorted(i for i in infos if infos[i] != known.get(i))}")
        self.notes.lost_states(outcome)
        self.notes.diverged(outcome)
        self.notes.refused_too_often(outcome)
        self.recorder.add(outcome)
        self.tracking.follow()
        self.notes.left_out(number, self.roster.problems)
        unsound = unsound_rounds(self.directory.path)
        self.checkpoints.save(number, self.server.state, unsound)
        self.notes.say_round(outcome)
        return outcome

    def _history(self) -> History:
        scores = self.recorder.accuracy | self.recorder.validation
        return History(scores, dict(self.recorder.trained))

    def _exchanges(
        self, number: int, participants: list[int], others: list[int], tests: set[int]
    ) -> RoundResult:
        """Make the round's exchanges; clients are evaluated in one of them."""
        half, context = self.server.half, self.server.context
        total, chosen = half.exchanges(context), half.evaluated_exchange(context)
        phase = "pre" if self.run.evaluates_before_training else "post"
        outcome: RoundResult | None = None
        for exchange in range(1, total + 1):
            evaluates = self.run.evaluates_in(number) and exchange == chosen
            self.server.exchange = exchange
            control = self._control(evaluate=evaluates, phase=phase)
            asked, measured = participants, others if evaluates else []
            if outcome is not None:
                online = set(self.roster.online()) - outcome.late
                asked = [i for i in participants if i in online]
                measured = [i for i in measured if i in online]
            outcome = self._exchange(control, asked, measured, tests, outcome)
        assert outcome is not None, f"{self.run.method}: a round needs at least one exchange"
        return outcome

    def _exchange(
        self,
        control: Control,
        asked: list[int],
        measured: list[int],
        tests: set[int],
        earlier: RoundResult | None = None,
        *,
        closing: bool = False,
    ) -> RoundResult:
        """Make an exchange and return the round so far; if the run ends here, record who failed."""
        current = Exchange(
            self.server,
            self.transport,
            self.roster,
            control,
            asked,
            measured,
            tests,
            self.send_order,
            self.payloads,
        )
        self.privacy.note(control.round, control.exchange, asked)
        try:
            current.run()
        except RunError:  # names a few of them
            failures = [*(earlier.failures if earlier else []), *current.result.failures]
            self.recorder.add_failures(control.round, failures, closing=closing)
            raise
        return current.result if earlier is None else earlier.followed_by(current.result)

    def _close(self) -> None:
        """Evaluate everyone once more where evaluation came before training; then summarise."""
        from server_app.records.summary import as_json, summarise  # loads pandas, as `report` does

        if self.run.evaluates_before_training:
            control = self._control(evaluate=True, phase="final", final=True)
            tests, measuring = self._measuring(self.roster.online())
            outcome = self._exchange(control, [], measuring, tests, closing=True)
            self.recorder.add(outcome, closing=True)
            self.tracking.follow()
            self.notes.meter.add(outcome, closing=True)
        summary = summarise(self.directory.path, self.run, len(self.server.clients))
        write_atomically(self.directory.path / "summary.json", as_json(summary))
        self._prune_simulated_states()
        say()
        say(console.final_table(self.server.clients, self.recorder.accuracy, self.recorder.trained))
        say(console.closing_lines(summary))
        self.directory.set_status(COMPLETED)
        try:
            self.report()
        except (OSError, ValueError) as error:
            say(f"warning: the run completed, its report could not be written: {error}")
        self.tracking.finish(COMPLETED)
        if not self.run.keep_states:
            delete_states(self.directory.path)

    def _measuring(self, online: list[int]) -> tuple[set[int], list[int]]:
        """Return who measures the test split, and who has anything to measure."""
        tests = self.server.half.evaluates_test(self.server.context, online)
        infos, trained = self.server.clients, self.recorder.trained
        measuring = [i for i in online if i in tests or infos[i].validation_examples]
        if not self.run.evaluates_untrained:  # a participant decides for itself
            measuring = [i for i in measuring if trained.get(i)]
        return tests, measuring

    def _control(self, *, evaluate: bool, phase: str, final: bool = False) -> Control:
        """Return what the messages of the exchange that is to come say."""
        return Control(
            run_name=self.directory.name,
            token=str(self.directory.info["token"]),
            session=self.session,
            round=self.server.server_round,
            exchange=self.server.exchange,
            resumed_at=self.resumed_at,
            keep_from=self.checkpoints.oldest(),
            evaluate=evaluate,
            phase=phase,
            final=final,
        )

    def _prune_simulated_states(self) -> None:
        """In a simulation the clients' states are here; drop those no resume can need."""
        clients = self.directory.path / "clients"
        for client in clients.iterdir() if clients.is_dir() else ():
            prune_rounds(client, self.checkpoints.oldest())
            round_file(client, 0).unlink(missing_ok=True)  # never trained: it can be drawn again
