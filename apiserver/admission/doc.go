// Package admission decides which agents a server serves. It enrols them with tokens, issues and
// renews their certificates, opens their sessions, and serves the agent API (package
// apiserver/agentapi) to those that are admitted, each for the storage of its machine.
//
// # Requests
//
// Each is a POST of a JSON object, answered like a call of the agent API: with {"result": …} or
// {"error": …}, and with the same statuses.
//
//	/v1/enrol            {"token": SECRET, "name": NAME, "key": KEY} → {"certificate": PEM}
//	/v1/login            {"token": SECRET, "name": NAME, "key": KEY} → {"certificate": PEM}
//	/v1/join             {"token": SECRET} → {"key": PEM}
//	/v1/certificate      {"key": KEY} → {"certificate": PEM}
//	/v1/session          {"secret": SECRET, "boot-id": ID, "started": BOOL} → {"number": NUMBER, "secret": SECRET}
//	/v1/session/confirm  {"number": NUMBER} → {}
//	/v1/agent/METHOD     see package agentapi; with the header Stowage-Session: NUMBER
//
// KEY is the agent's public key (PKIX, DER, in base64). All but the first three need the certificate.
// An agent that gets no answer repeats its request: enrolling again with the same token and the
// same key has no further effect. Users log in as agents enrol, and renew their certificates alike;
// their other requests are those of package apiserver/userapi, which asks [Handler.User] for the
// user.
//
// # Sessions
//
// An agent opens a session for each connection, with the secret of the one before. It stores the
// new secret, confirms the session, and then uses it. An open stream ends when a newer session is
// opened; a call in an older session is answered with 503, "try again", and has no effect.
//
// An agent is refused for good (401) when its machine was removed, when another agent was
// enrolled for its machine, and when its secret is not the current one: then another agent uses
// a copy of its directory. It is refused with 403 when its machine was fenced and has the same boot
// ID as before: then the machine was not off, and must no longer write to what others may use.
//
// # Presence
//
// While an agent has a stream, its machine counts as connected, and for 40 seconds longer. After
// a start of the server, each machine that was connected to it has that time to return. When one
// of several servers has failed, its machines have that time to connect to another one. Nothing is
// detached or taken away because a machine is not connected.
package admission
