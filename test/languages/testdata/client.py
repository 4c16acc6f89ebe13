"""Asks three times as anna and once as never, and prints what the refusals say."""

import json
import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

channel = grpc.insecure_channel(sys.argv[1])
check = channel.unary_unary("/grpc.health.v1.Health/Check")


def ask(user):
    try:
        check(b"", metadata=(("user", user),), timeout=20)
    except grpc.RpcError as e:
        return e
    return None


def told(e):
    retry, policy = -1, ""
    for detail in rpc_status.from_call(e).details:
        info, quota = error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure()
        if detail.Unpack(info):
            retry = info.retry_delay.seconds
        if detail.Unpack(quota):
            policy = quota.violations[0].subject
    metadata = dict(e.trailing_metadata())
    return {
        "code": str(e.code().value[0]),
        "retry": retry,
        "policy": policy,
        "pushback": metadata.get("grpc-retry-pushback-ms", ""),
        "after": metadata.get("retry-after", ""),
    }


for _ in range(2):
    assert ask("anna") is None
print(json.dumps([told(ask("anna")), told(ask("never"))]))
