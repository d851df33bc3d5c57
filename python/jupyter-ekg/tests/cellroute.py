"""An extension of the tests' Jupyter server that runs a cell as jupyter-server-nbmodel does: with ``km.client()``."""

from __future__ import annotations

from jupyter_core.utils import ensure_async
from jupyter_server.utils import url_path_join
from tornado import web


class CellHandler(web.RequestHandler):
    """``POST /cell/ID``: runs the body's code in the kernel, and answers with the text of its first output."""

    async def post(self, kernel_id):
        manager = self.settings["kernel_manager"].get_kernel(kernel_id)
        client = manager.client()
        await ensure_async(client.start_channels())
        try:
            msg_id = client.execute(self.request.body.decode())
            while True:
                msg = await ensure_async(client.get_iopub_msg(timeout=60))
                if msg["msg_type"] == "stream" and msg["parent_header"].get("msg_id") == msg_id:
                    break
            self.finish({"text": msg["content"]["text"], "msg_id": msg_id})
        finally:
            client.stop_channels()

    def check_xsrf_cookie(self):
        """The tests send no cookie."""


def _jupyter_server_extension_points():
    return [{"module": "cellroute"}]


def _load_jupyter_server_extension(serverapp):
    pattern = url_path_join(serverapp.web_app.settings["base_url"], r"/cell/([^/]+)")
    serverapp.web_app.add_handlers(".*$", [(pattern, CellHandler)])
