"""The messages of the Open Inference Protocol's gRPC service, made from a table of their fields.

Their names and numbers are those of open_inference_grpc.proto (the KServe project). No generated code is kept: that would be
tied to one version of protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

PACKAGE, SERVICE = "inference", "GRPCInferenceService"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64, "uint32": _Field.TYPE_UINT32,
            "uint64": _Field.TYPE_UINT64, "float": _Field.TYPE_FLOAT, "double": _Field.TYPE_DOUBLE,
            "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES}
_PARAMETERS = "map InferParameter"
_TENSORS = {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "* int64"), "parameters": (4, _PARAMETERS),
            "contents": (5, "InferTensorContents")}
_NAMED = {"name": (1, "string"), "version": (2, "string")}
#: Of each message its fields: number and type; "* " are many, "map " is one by text, "| " one of several.
FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "InferParameter": {"bool_param": (1, "| bool"), "int64_param": (2, "| int64"), "string_param": (3, "| string"),
                       "double_param": (4, "| double"), "uint64_param": (5, "| uint64")},
    "InferTensorContents": {"bool_contents": (1, "* bool"), "int_contents": (2, "* int32"), "int64_contents": (3, "* int64"),
                            "uint_contents": (4, "* uint32"), "uint64_contents": (5, "* uint64"),
                            "fp32_contents": (6, "* float"), "fp64_contents": (7, "* double"),
                            "bytes_contents": (8, "* bytes")},
    "ServerLiveRequest": {}, "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {}, "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": _NAMED, "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_NAMED, "extensions": (3, "* string")},
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse.TensorMetadata": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "* int64")},
    "ModelMetadataResponse": {"name": (1, "string"), "versions": (2, "* string"), "platform": (3, "string"),
                              "inputs": (4, "* ModelMetadataResponse.TensorMetadata"),
                              "outputs": (5, "* ModelMetadataResponse.TensorMetadata")},
    "ModelInferRequest.InferInputTensor": _TENSORS,
    "ModelInferRequest.InferRequestedOutputTensor": {"name": (1, "string"), "parameters": (2, _PARAMETERS)},
    "ModelInferRequest": {"model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
                          "parameters": (4, _PARAMETERS), "inputs": (5, "* ModelInferRequest.InferInputTensor"),
                          "outputs": (6, "* ModelInferRequest.InferRequestedOutputTensor"),
                          "raw_input_contents": (7, "* bytes")},
    "ModelInferResponse.InferOutputTensor": _TENSORS,
    "ModelInferResponse": {"model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
                           "parameters": (4, _PARAMETERS), "outputs": (5, "* ModelInferResponse.InferOutputTensor"),
                           "raw_output_contents": (6, "* bytes")},
    "RepositoryIndexRequest": {"repository_name": (1, "string"), "ready": (2, "bool")},
    "RepositoryIndexResponse.ModelIndex": {**_NAMED, "state": (3, "string"), "reason": (4, "string")},
    "RepositoryIndexResponse": {"models": (1, "* RepositoryIndexResponse.ModelIndex")},
}
#: Its calls: each takes the Request of its name and gives the Response.
CALLS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "RepositoryIndex")


def _file() -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto(name="tsc_open_inference.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, Any] = {}
    for path, fields in sorted(FIELDS.items()):  # what is around another one comes first
        outer, _, name = path.rpartition(".")
        message = made[path] = (made[outer].nested_type if outer else found.message_type).add(name=name)
        for field, (number, kind) in fields.items():
            _add(message, path, field, number, kind)
    return found


def _add(message: Any, path: str, name: str, number: int, kind: str) -> None:
    many, _, base = kind.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_REPEATED if many in ("*", "map") else
                              _Field.LABEL_OPTIONAL)
    if many == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(entry, "", "key", 1, "string")
        _add(entry, "", "value", 2, base)
        base = f"{path}.{entry.name}"
    if many == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if base in _SCALARS:
        field.type = _SCALARS[base]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{base}"


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()  # of its own: a client in this process may have the same names
    pool.Add(_file())
    return {path: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{path}")) for path in FIELDS}


#: The class of each message, by its name.
MESSAGES: Mapping[str, Any] = _classes()
