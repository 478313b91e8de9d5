package docker

import (
	"context"
	"encoding/json"
	"net/http"
)

// The media type of answers, and the limit of requests, in bytes.
const (
	mediaType  = "application/vnd.docker.plugins.v1.2+json"
	maxRequest = 1 << 20
)

// request has the fields of all requests.
type request struct {
	Name string
	Opts map[string]string
}

// wireVolume is a volume in answers.
type wireVolume struct {
	Name       string
	Mountpoint string         `json:",omitempty"`
	Status     map[string]any `json:",omitempty"`
}

// answer has the fields of all answers.
type answer struct {
	Implements   []string      `json:",omitempty"`
	Capabilities *capabilities `json:",omitempty"`
	Mountpoint   string        `json:",omitempty"`
	Volume       *wireVolume   `json:",omitempty"`
	Volumes      *[]wireVolume `json:",omitempty"`
	Err          string
}

type capabilities struct{ Scope string }

// NewHandler returns what serves the protocol of volume plugins.
func NewHandler(config Config) (http.Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	d := &driver{config: config, busy: map[string]*user{}}
	mux := http.NewServeMux()
	serve := func(call string, do func(context.Context, request) (answer, error)) {
		mux.HandleFunc("POST /"+call, func(w http.ResponseWriter, r *http.Request) {
			var asked request
			var answered answer
			err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&asked)
			if err == nil || r.ContentLength == 0 {
				answered, err = do(r.Context(), asked)
			}
			w.Header().Set("Content-Type", mediaType)
			if err != nil {
				config.Logger.Debugf("%s: %v", call, err)
				answered = answer{Err: err.Error()}
				w.WriteHeader(http.StatusInternalServerError)
			}
			_ = json.NewEncoder(w).Encode(answered) // the engine has gone if this fails
		})
	}
	serve("Plugin.Activate", func(context.Context, request) (answer, error) {
		return answer{Implements: []string{"VolumeDriver"}}, nil
	})
	serve("VolumeDriver.Capabilities", func(context.Context, request) (answer, error) {
		return answer{Capabilities: &capabilities{Scope: "local"}}, nil
	})
	serve("VolumeDriver.Create", d.create)
	serve("VolumeDriver.Remove", d.remove)
	serve("VolumeDriver.Mount", d.mount)
	serve("VolumeDriver.Path", d.path)
	serve("VolumeDriver.Unmount", func(context.Context, request) (answer, error) { return answer{}, nil })
	serve("VolumeDriver.Get", d.get)
	serve("VolumeDriver.List", d.list)
	return mux, nil
}
