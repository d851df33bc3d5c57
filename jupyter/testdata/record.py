# Prints testdata/comm_msg.json: one message as jupyter_client and jupyter_server put it on the wire.
# Run with an interpreter that has jupyter_server: python record.py > comm_msg.json
import json,sys,hmac,hashlib
from jupyter_client.session import Session
from jupyter_server.services.kernels.connection.base import serialize_binary_message, serialize_msg_to_ws_v1
key=b"5f2a-key"
header={"msg_id":"a1b2_1","msg_type":"comm_msg","username":"ann","session":"s-1","date":"2026-11-21T10:00:00.000000Z","version":"5.4"}
parent={"msg_id":"p_1","session":"c-1","msg_type":"execute_request"}
meta={"n":12345678901234567890,"f":1.50,"x":None}
content={"comm_id":"k","data":{"text":"grüße \u2603 \"q\" \\","buffer_paths":[["b"]]}}
bufs=[b"\x00\x01\xff",b"",b"tail"]
s=Session(key=key, session="s-1")
d=lambda o: json.dumps(o,ensure_ascii=False,separators=(",",":")).encode()
parts=[d(header),d(parent),d(meta),d(content)]
sig=s.sign(parts)
msg={"header":header,"msg_id":header["msg_id"],"msg_type":header["msg_type"],"parent_header":parent,"metadata":meta,"content":content,"buffers":list(bufs),"channel":"iopub"}
legacy=serialize_binary_message(dict(msg))
v1=serialize_msg_to_ws_v1([*parts,*bufs],"iopub")
v1=b"".join(v1) if isinstance(v1,list) else v1
json.dump({"key":key.decode(),"zmq":[b"kernel.x.comm".hex(),b"<IDS|MSG>".hex(),sig.hex()]+[p.hex() for p in parts]+[b.hex() for b in bufs],"v1":v1.hex(),"legacy":legacy.hex()},sys.stdout,indent=1)
