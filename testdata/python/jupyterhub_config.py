"""A hub of which only the API is used, as cmd/ekg's test of it starts it: no proxy, no servers, everybody may log in."""

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
# What docs/users.md tells operators: the role that everybody has lets everybody's tokens be used at the service.
c.JupyterHub.load_roles = [
    {"name": "starter", "services": ["starter"], "scopes": ["admin:users", "tokens", "access:services!service=ekg"]},
    {"name": "user", "scopes": ["self", "access:services!service=ekg"]},
]
