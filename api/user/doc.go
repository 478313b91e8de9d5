// Package user has the requests of users to an agent or a server, and a client that makes them:
// what storage, pools, machines and tokens there are, and what is to change. The command stowage is
// such a client. Package apiserver/userapi is the other side, and describes the protocol.
//
// Agents of machines use package api instead.
package user
