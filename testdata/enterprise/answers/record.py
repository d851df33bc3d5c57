# Prints answers.json: answers as Enterprise Gateway's launchers send them. The key pair is for this test only.
# Run with an interpreter that has Enterprise Gateway, and with the folder of its source:
#   FOLDER/eg/bin/python record.py FOLDER/eg-source > answers.json     where FOLDER is what hack/env/peers prints
import base64, json, sys

from Cryptodome.Cipher import AES
from Cryptodome.PublicKey import RSA

sys.path.insert(0, sys.argv[1] + "/etc/kernel-launchers/python/scripts")
import launch_ipykernel

from enterprise_gateway.services.processproxies.processproxy import ResponseManager

kernel = "0f6d1d4e-2b1a-4c3d-9e8f-a1b2c3d4e5f6"
info = {"shell_port": 52001, "iopub_port": 52002, "stdin_port": 52003, "control_port": 52004, "hb_port": 52005,
        "ip": "0.0.0.0", "key": "11111111-2222-4333-8444-555555555555", "transport": "tcp",
        "signature_scheme": "hmac-sha256", "kernel_name": "", "pid": 7, "pgid": 1, "comm_port": 52006,
        "kernel_id": kernel}
older = {k: str(v) if k == "pid" else v for k, v in info.items() if k not in ("kernel_id", "pgid")}


def version0(content):
    """An answer of releases before 2.6, whose launchers are no longer in the source: '%' fills the last block."""
    text = json.dumps(content)
    text += (16 - len(text) % 16) * "%"
    return base64.b64encode(AES.new(kernel[:16].encode(), AES.MODE_ECB).encrypt(text.encode())).decode()


answers = []
for bits in (1024, 2048):
    pair = RSA.generate(bits)
    public = base64.b64encode(pair.publickey().export_key(format="DER")).decode()
    answers.append({"bits": bits, "private": base64.b64encode(pair.export_key(format="DER", pkcs=8)).decode(),
                    "public": public,
                    "version1": launch_ipykernel._encrypt(json.dumps(info).encode(), public).decode()})

old = version0(older)
# The gateway's own reader agrees.
manager = ResponseManager.instance()
manager.register_event(kernel)
assert manager._decode_payload(old.encode()) == older | {"kernel_id": kernel}
json.dump({"kernel": kernel, "answers": answers, "version0": old}, sys.stdout, indent=1)
