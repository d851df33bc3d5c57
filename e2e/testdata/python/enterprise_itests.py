"""Runs integration tests of Enterprise Gateway, whose client sends no token. Each user's token is in EKG_TOKEN_NAME.
Requests about a kernel are sent as KERNEL_USERNAME. Run with an interpreter that has Enterprise Gateway."""
import json
import os
import sys
import unittest

import requests
import websocket


def header(user):
    return {"Authorization": "token " + os.environ["EKG_TOKEN_" + user]}


def request(method, url, data=None, **more):
    env = json.loads(data).get("env", {}) if data else {}
    user = env.get("KERNEL_USERNAME", os.environ["KERNEL_USERNAME"])
    return requests.request(method, url, data=data, headers=header(user), **more)


connect = websocket.create_connection
websocket.create_connection = lambda url, **more: connect(url, header=header(os.environ["KERNEL_USERNAME"]), **more)
requests.get = lambda url, **more: request("GET", url, **more)
requests.post = lambda url, **more: request("POST", url, **more)
requests.delete = lambda url, **more: request("DELETE", url, **more)
unittest.main(module=None, argv=[sys.argv[0], "-v", *sys.argv[1:]])
