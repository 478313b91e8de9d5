package agentwire

// The paths of package apiserver/admission. Each is a POST with a JSON object, which is answered
// by an [Answer].
const (
	EnrolPath          = "/v1/enrol"
	LoginPath          = "/v1/login"
	JoinPath           = "/v1/join"
	CertificatePath    = "/v1/certificate"
	OpenSessionPath    = "/v1/session"
	ConfirmSessionPath = "/v1/session/confirm"
)

// SessionHeader is the header of all requests in a session: its number, in decimal.
const SessionHeader = "Stowage-Session"

// EnrolRequest is the body of a request to [EnrolPath] or [LoginPath], which need no certificate.
type EnrolRequest struct {
	// Token is the secret part of a token.
	Token string `json:"token"`
	// Name is that of the machine or the user.
	Name string `json:"name"`
	// Key is the agent's or the user's public key, as PKIX in DER.
	Key []byte `json:"key"`
}

// JoinRequest is the body of a request to [JoinPath], by which a server joins others. It needs no
// certificate.
type JoinRequest struct {
	// Token is the secret part of a token.
	Token string `json:"token"`
	// Name is the name of the server, and Address the host and port at which other servers reach it,
	// if it is to keep the state together with them.
	Name    string `json:"name,omitempty"`
	Address string `json:"address,omitempty"`
}

// JoinResult is its result.
type JoinResult struct {
	// Key is the private key of the certificate authority, in PEM.
	Key string `json:"key"`
	// Cluster is what a server needs that is to keep the state together with others.
	Cluster *JoinedCluster `json:"cluster,omitempty"`
}

// JoinedCluster is a cluster of servers that a new one may join.
type JoinedCluster struct {
	// Members are its members in etcd's notation.
	Members string `json:"members"`
	// CA is the certificate of the authority of the members, and Key its private key, both in PEM.
	CA  string `json:"ca"`
	Key string `json:"key"`
}

// CertificateRequest is the body of a request to [CertificatePath], by which an agent or a user
// renews the certificate.
type CertificateRequest struct {
	Key []byte `json:"key"`
}

// CertificateResult is the result of [EnrolPath], [LoginPath] and [CertificatePath].
type CertificateResult struct {
	// Certificate is the certificate in PEM.
	Certificate string `json:"certificate"`
}

// OpenSessionRequest is the body of a request to [OpenSessionPath].
type OpenSessionRequest struct {
	// Secret is that of the last session that the agent has stored, or empty.
	Secret string `json:"secret"`
	// Opener is the secret that opened that session. It is nil if there was none.
	Opener *string `json:"opener,omitempty"`
	// BootID identifies the time since the machine was started.
	BootID string `json:"boot-id,omitempty"`
	// Started says that this is the agent's first session since it was started.
	Started bool `json:"started,omitempty"`
}

// OpenSessionResult is its result.
type OpenSessionResult struct {
	Number uint64 `json:"number"`
	Secret string `json:"secret"`
	// Reopened says that the session was opened by the request's Opener, not by its Secret.
	Reopened bool `json:"reopened,omitempty"`
	// Generation is that of the state. It is another one after the state was restored.
	Generation uint64 `json:"generation,omitempty"`
}

// ConfirmSessionRequest is the body of a request to [ConfirmSessionPath].
type ConfirmSessionRequest struct {
	Number uint64 `json:"number"`
}
