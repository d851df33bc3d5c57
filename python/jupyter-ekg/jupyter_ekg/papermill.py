"""papermill's engine ``ekg``: ``papermill --engine ekg in.ipynb out.ipynb`` runs a notebook through the gateway."""

from papermill.engines import NBClientEngine

from .client import EkgKernelManager


class EkgEngine(NBClientEngine):
    """papermill's own engine, with kernels of the gateway that ``JUPYTER_GATEWAY_URL`` names."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, **kwargs):
        """Runs a notebook as papermill's own engine does."""
        kwargs["kernel_manager_class"] = EkgKernelManager
        return super().execute_managed_notebook(nb_man, kernel_name, **kwargs)
