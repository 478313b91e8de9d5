// Package userapi serves the requests of users, over any HTTP server: what storage, pools, machines
// and tokens there are, and what is to change. [Handler] passes them on to a [Backend]. Package
// api/user has the requests, and a client.
//
// The protocol is JSON over HTTP. GET /v1/storage, for example, returns all storage, and POST
// /v1/detach with {"names": ["data"]} requests that storage be detached. A change is answered when
// it is recorded, with status 204 if there is nothing to say. PUT and DELETE of storage can be made to
// depend on its revision, with If-Match. POST /v1/watch is answered by a stream of events, one a line,
// until either side ends it; a client goes on from the position of an event. An error is an object as
// RFC 9457 defines it ([user.Problem]), with a status of 400 or more; "detail" is its text. The
// document that describes all requests, in the form of OpenAPI 3.1, is at /v1/openapi.yaml and
// /v1/openapi.json, and in docs/reference/openapi.yaml.
//
// Each request has a caller with a role, whom the configuration finds: viewers may only read.
//
// A handler serves requests concurrently. It has no goroutines of its own.
package userapi
