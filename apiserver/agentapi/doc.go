// Package agentapi serves the accessors of a storage provisioner to an agent on another machine,
// over HTTP/2. Package api is the client. The package does not decide whom it trusts: its
// embedder authenticates each request, and provides TLS.
//
// # Calls
//
// A call is a POST to /v1/agent/METHOD, where METHOD is the name of a method of
// storageprovisioner.Accessors, of its optional capabilities, of diskmanager.BlockDeviceUpdater, of
// [SpaceSetter], of [DriverSetter], of [TaskAccessor], or of [AskedAccessor]. Requests and answers are JSON objects:
//
//	{"args": [ARGUMENT, …]}
//	{"result": RESULT} or {"error": {"message": …, "code": …}}
//
// Each argument is the text of a tag, such as "volume-0", or a value of package
// apiserver/params. RESULT is the list of results in the order of the arguments; for a method
// without results it is null, for EnvironConfig it is the settings. SetMachineBlockDevices takes
// the block devices as its arguments, and UpdateMachineBlockDevices takes
//
//	{"changed": [DEVICE, …], "gone": [NAME, …]}
//
// SetMachineSpace takes one argument, the space by provider:
//
//	{"loop": {"size-mib": 102400, "free-mib": 51200}, …}
//
// SetMachineDrivers takes one argument, what CSI drivers say about the machine, by provider:
//
//	{"hostpath": {"node-id": "web", "topology": {"zone": "a"}, "max-volumes": 16}, …}
//
// Tasks takes no arguments, and returns values of package core/task. BeginTask and AnswerTask take
//
//	{"id": ID, "claim": CLAIM}
//	{"id": ID, "result": RESULT} or {"id": ID, "error": {"message": …, "code": …}}
//
// AskedVolumes, AttachAskedVolumes and DetachAskedVolumes take IDs, and ResizeAskedVolumes takes
//
//	{"id": ID, "size-mib": SIZE}
//
// The status of the answer says whether the accessor was called:
//
//	200            yes: the answer has its results, or its error
//	400, 413       no: the request cannot be read, or is too large
//	401, 403       no: this agent is refused, and should not try again
//	404, 405       no: there is no such method
//	503            no: the agent should try again
//
// A status with another body is not the server's but that of something in between.
//
// All calls can be repeated, so an agent that gets no answer makes the call again. The server
// does not know whether a call that it is making has been given up: the embedder must keep a
// call from taking effect after the repeated one and what followed it.
//
// A request has at most 16 MiB, and must arrive within 30 seconds; an answer has at most 64 MiB.
// A client makes a bulk call with more than 1,000 arguments, or 1 MiB of them, in parts.
//
// # Streams
//
// All watchers of an agent use one stream: a POST to /v1/agent/Stream whose request body and
// response body are both open, and have a JSON object a line. It needs HTTP/2. The server begins
// with the names of the methods that the agent may call:
//
//	{"type": "hello", "methods": ["AttachmentLife", …]}
//
// The agent starts watchers, each with a number that is new on this stream. The arguments are
// the tags of machines, and for WatchAskedVolume an ID:
//
//	{"type": "start", "watcher": 1, "method": "WatchMachine", "args": ["machine-0"]}
//
// The server answers that the watcher has started, or has ended with an error. A watcher that
// has started may end with an error later.
//
//	{"type": "started", "watcher": 1}
//	{"type": "ended", "watcher": 1, "error": {"message": …, "code": …}}
//
// Then it sends events: {} for a notification, otherwise a list of IDs, tags or attachments as
// the watcher reports them. It sends the next event of a watcher when the agent has acknowledged
// the last one, so a slow agent costs the server one merged event for each watcher:
//
//	{"type": "event", "watcher": 2, "event": ["0", "0/1"]}
//	{"type": "ack", "watcher": 2}
//	{"type": "stop", "watcher": 2}
//
// Both sides send {"type": "alive"} every 5 seconds, and give the stream up after 15 seconds
// without a message. An agent's message has at most 64 KiB, a server's 64 MiB. A message that
// breaks the protocol ends the stream, and so does an agent that reads nothing for 30 seconds.
//
// A stream does not survive its connection. On a new one the agent starts its watchers again;
// each begins with what there is then. What has been deleted in between is missing, so the agent
// must also look again at everything that a watcher has reported before. Users' requests
// (WatchRetries, WatchFormats) that are made while the agent is not connected are lost.
package agentapi
