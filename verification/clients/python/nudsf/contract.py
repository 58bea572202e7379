"""Writes the contract of Nudsf as an OpenAPI document for schemathesis.

Usage: contract.py DERIVED OUT. DERIVED is protocols/nudsf/tests/data/openapi.json: the operations
and types of TS 29.598 without their texts. The document differs from the contract where
docs/nudsf.md says so: 304 has no body, 412 may be a problem, GetMetaSchema returns a MetaSchema;
and any operation may answer with a problem.
"""

import json
import sys


def references(value):
    """The same schema with references to components of a document."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{inner}" if key == "$ref" else references(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [references(inner) for inner in value]
    return value


def media(types):
    return {name: {"schema": references(schema)} for name, schema in types.items()}


PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/TS29571_CommonData__ProblemDetails"}}}


def response(operation, status, spec):
    content = media(spec["media"])
    if status.startswith(("4", "5")):
        content = {**content, **PROBLEM}
    if status == "304":
        content = {}
    if operation == "GetMetaSchema" and status == "200":
        content = media({"application/json": {"$ref": "MetaSchema"}})
    headers = {
        name: {"required": required, "schema": {"type": "string"}}
        for name, required in spec["headers"].items()
    }
    return {"description": status, "content": content, "headers": headers}


def parameter(spec):
    schema = references(spec["schema"])
    if spec["name"] == "realmId":
        schema = {"type": "string", "enum": ["Realm01"]}
    if spec["name"] == "storageId":
        schema = {"type": "string", "enum": ["Storage01"]}
    place = {"content": {"application/json": {"schema": schema}}} if spec["json"] else {"schema": schema}
    required = spec["required"] or spec["in"] == "path"
    return {"name": spec["name"], "in": spec["in"], "required": required, **place}


def main(derived, out):
    with open(derived, encoding="utf-8") as file:
        contract = json.load(file)
    paths = {}
    for spec in contract["operations"]:
        responses = {
            status: response(spec["id"], status, one) for status, one in spec["responses"].items()
        }
        responses["default"] = {"description": "a problem", "content": PROBLEM}
        operation = {
            "operationId": spec["id"],
            "parameters": [parameter(one) for one in spec["parameters"]],
            "responses": responses,
        }
        if spec["request"]:
            operation["requestBody"] = {"required": True, "content": media(spec["request"])}
        paths.setdefault(spec["path"], {})[spec["method"].lower()] = operation
    document = {
        "openapi": "3.0.0",
        "info": {"title": "Nudsf_DataRepository and Nudsf_Timer", "version": "1.3.0"},
        "paths": paths,
        "components": {"schemas": references(contract["schemas"])},
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(document, file)


main(*sys.argv[1:])
