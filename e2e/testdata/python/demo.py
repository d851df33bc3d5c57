"""demo.py LAB_URL LAB_TOKEN EKG_URL EKG_TOKEN: runs a notebook by nbclient through the demo's JupyterLab."""
import os
import sys

os.environ["EKG_URL"], os.environ["EKG_TOKEN"] = sys.argv[3:5]

import remote  # noqa: E402 (it reads the environment)
from direct import nbclient_executes  # noqa: E402


def main():
    remote.point_at(sys.argv[1], sys.argv[2])
    nbclient_executes("python3")
    print("demo: the notebook ran")


if __name__ == "__main__":
    sys.exit(main())
