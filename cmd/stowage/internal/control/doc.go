// Package control is the protocol between the command line and the agent: JSON over HTTP on a
// unix socket. [Server] serves requests from a [Backend]; [Client] makes them.
//
// Every request is a POST of one JSON object to /v1/VERB. A response is one JSON object, or,
// for watch, a stream of them, one a line, until either side ends it. An error is an object
// with the member "error".
//
// Only root and the user that the agent runs as are served. The mode of the socket file allows
// no one else, but the decision is based on the peer's user as the kernel reports it. In the
// same way the client verifies that the server is one of the two.
package control
