"""Settings of our gateway."""
import os
c = get_config()  # noqa

# the address
c.EnterpriseGatewayApp.ip = "0.0.0.0"
c.EnterpriseGatewayApp.port = 9_000
c.EnterpriseGatewayApp.auth_token = 'hunter2-hunter2'
c.EnterpriseGatewayApp.base_url = os.environ["BASE_SECRET"]
c.EnterpriseGatewayApp.client_envs = [
    'A_TOKEN',  # one
    "B",
]
c.EnterpriseGatewayApp.env_whitelist.append('D')
if os.path.exists('/x'):
    c.EnterpriseGatewayApp.max_kernels = 5
c.EnterpriseGatewayApp.max_kernels_per_user = 3
c.RemoteMappingKernelManager.cull_idle_timeout = 3600
c.MappingKernelManager.cull_busy = False
c.RemoteKernelManager.shutdown_wait_time = 2.5
c.WebhookKernelSessionManager.webhook_password = "hunter3"
c.EnterpriseGatewayApp.unauthorized_users = {'root', 'bob'}
c.Nope.x = 1
c.EnterpriseGatewayApp.certfile = u''
c.EnterpriseGatewayApp.max_kernels = None
c.EnterpriseGatewayApp.default_kernel_name = ("python_"
    "kubernetes")
c.EnterpriseGatewayApp.log_level = 'LOUD'
