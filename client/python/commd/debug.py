"""commd in the debug pages of torch.distributed (torch 2.13 to 2.15, where they are experimental):

    from torch.distributed.debug import start_debug_server
    import commd.debug

    start_debug_server(handlers=commd.debug.handlers())

/fr_trace_commd has what /fr_trace has for gloo: the collectives of all ranks, compared with each
other; /commd_why what `commctl why` and `commctl ranks` say on the node of rank 0.
Needs what torch's pages need: jinja2, tabulate, aiohttp or requests.
"""

import shutil
import subprocess

from torch.distributed.debug._debug_handlers import FlightRecorderHandler, default_handlers
from torch.distributed.debug._frontend import (
    DebugHandler,
    NavLink,
    Response,
    Route,
    fetch_all,
)

__all__ = ["CommdFlightRecorder", "CommdWhy", "handlers"]

ENDPOINT = "commd_fr_trace_json"  # of the ranks: recorder.cpp


class CommdFlightRecorder(FlightRecorderHandler):
    def routes(self):
        return [
            Route("/fr_trace_commd", self._handle_commd),
            Route("/fr_trace_commd_json", self._handle_commd_json),
        ]

    def nav_links(self):
        return [
            NavLink("/fr_trace_commd", "FlightRecorder commd"),
            NavLink("/fr_trace_commd_json", "(JSON)"),
        ]

    def _fetch(self):
        return fetch_all(ENDPOINT, timeout=self.fetch_timeout)

    def _handle_commd(self, request):
        addresses, responses = self._fetch()
        return self._render_tables(request.frontend, addresses, list(responses))

    def _handle_commd_json(self, request):
        addresses, responses = self._fetch()
        return request.frontend.render_template(
            "json_resp.html", title="FlightRecorder commd", addrs=addresses, resps=responses
        )

    def dump(self):
        addresses, responses = self._fetch()
        collectives = self._build_db(addresses, list(responses)).collectives
        return "\n".join(str(collective) for collective in collectives)

    def dump_filename(self):
        return "fr_trace_commd"


def commctl(*words):
    program = shutil.which("commctl")
    if not program:
        return Response(500, "commctl is not in PATH")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=20)
    return Response(200, done.stdout + done.stderr)


class CommdWhy(DebugHandler):
    def routes(self):
        return [Route("/commd_why", self._handle)]

    def nav_links(self):
        return [NavLink("/commd_why", "commctl why")]

    def _handle(self, request):
        verbs = ["why", "ranks"]
        return request.frontend.render_template(
            "raw_resp.html", title="commd", addrs=[f"commctl {verb}" for verb in verbs],
            resps=[commctl(verb) for verb in verbs],
        )  # fmt: skip

    def dump(self):
        return "\n\n".join(commctl(verb).text for verb in ("why", "ranks"))

    def dump_filename(self):
        return "commd_why"


def handlers():
    """torch's own, and these."""
    return [*default_handlers(), CommdFlightRecorder(), CommdWhy()]
