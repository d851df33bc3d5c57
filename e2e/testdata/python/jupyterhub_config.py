"""The configuration of the hub that the end to end tests start.

Only its API is used: it has no proxy and no servers, and every user may log in.
"""

import os
from jupyterhub.auth import DummyAuthenticator
from jupyterhub.proxy import Proxy

class NoProxy(Proxy):
    should_start = False
    async def add_route(self, routespec, target, data): pass
    async def delete_route(self, routespec): pass
    async def get_all_routes(self): return {}

c = get_config()
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.authenticator_class = DummyAuthenticator
c.Authenticator.allow_all = True
c.JupyterHub.hub_connect_ip = "127.0.0.1"
c.JupyterHub.hub_port = int(os.environ["HUB_PORT"])
c.JupyterHub.db_url = "sqlite:///" + os.environ["HUB_DIR"] + "/hub.sqlite"
c.JupyterHub.cookie_secret_file = os.environ["HUB_DIR"] + "/cookie"
c.JupyterHub.load_groups = {"team": {"users": ["ann"]}}
c.JupyterHub.services = [{"name": "ekg"}, {"name": "starter", "api_token": os.environ["HUB_TOKEN"]}]
# The role "user" is the one in docs/users.md. Every user has it, and it allows their tokens at the service.
c.JupyterHub.load_roles = [
    {"name": "starter", "services": ["starter"], "scopes": ["admin:users", "tokens", "access:services!service=ekg"]},
    {"name": "user", "scopes": ["self", "access:services!service=ekg"]},
]
