// Package control is how the command line talks to the agent: requests in JSON
// over HTTP on a unix socket. [Server] answers from a [Backend]; [Client] asks.
//
// Every request is a POST of one JSON object to /v1/VERB. An answer is one JSON
// object, or, for watch, a stream of them, one a line, until either side ends
// it. An error is an object with the member "error".
//
// Only root and the user that the agent runs as are answered. The socket file is
// theirs alone as well, but the kernel's word on who connected is what counts. In the
// same way the client sees that it is one of the two who answers.
package control
