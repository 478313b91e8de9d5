// Package control is the socket on which a process serves the requests of the users of its host:
// [Server] serves package apiserver/userapi there, and [NewClient] makes a client of package
// api/user.
//
// Only root and the user that the agent runs as are served. The mode of the socket file allows
// no one else, but the decision is based on the peer's user as the kernel reports it. In the
// same way the client verifies that the server is one of the two.
package control
