// Package api is the client of package apiserver/agentapi: the accessors of a storage
// provisioner whose state is on a server.
//
// A [Client] hides lost connections. A call waits until the server has answered it, however long
// that takes, and is made again on another connection if necessary; a watcher goes on where it
// was. So the worker notices nothing but delay, and storage in use is left alone. The client
// ends, with all its calls and watchers, when it is closed, or when the server refuses the agent
// ([ErrRefused]). To stop a worker while there is no connection, close its client: a worker
// waits for its call.
//
// After a connection was lost, a watcher reports once more all that it had reported, together
// with what there is now, so that the receiver also reads what has been deleted. It keeps what
// it has reported since the connection began. Watchers of users' requests repeat nothing: a
// request is for one attempt. A request that a user makes while the agent is not connected does
// not reach it.
//
// The server must have all optional capabilities of the accessors: without them the worker would,
// for example, destroy storage that the state wants to release. [Dial] returns an error for a
// server that lacks some, and a connected client ends when it meets one.
//
// The logger receives a message when the connection is lost, for each further reason why there is
// none, and one when there is a new one.
package api
