package controlplane_test

import (
	"encoding/json"
	"strconv"
)

// parseAudit returns the verb and the resource of a request, and the status if it failed.
func parseAudit(line string) (string, error) {
	var event struct {
		Verb      string
		ObjectRef struct{ Resource, Subresource string }
		Response  struct{ Code int } `json:"responseStatus"`
	}
	if err := json.Unmarshal([]byte(line), &event); err != nil {
		return "", err
	}
	name := event.Verb + " " + event.ObjectRef.Resource
	if event.ObjectRef.Subresource != "" {
		name += "/" + event.ObjectRef.Subresource
	}
	if event.Response.Code >= 400 {
		name += " " + strconv.Itoa(event.Response.Code)
	}
	return name, nil
}
