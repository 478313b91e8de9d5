package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The program of a provider is told where the machine of a volume is, as users have labelled it.
func TestProgramGetsLabelsOfMachine(t *testing.T) {
	s := newSite(t)
	shared := filepath.Join(s.dir, "shared")
	if err := os.MkdirAll(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(shared, "provider"), "../examples/shared-directory").CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	program := filepath.Join(s.dir, "program")
	asked := filepath.Join(s.dir, "asked-")
	script := "#!/bin/sh\ntee -a '" + asked + "'\"$1\" | '" + shared + "/provider' \"$1\"\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	plugin := "--provider=shared=" + program
	server := s.startServer(plugin)
	agent := s.startAgent("web", s.token(), plugin)
	s.must("machine", "label", "web", "zone=east")
	s.writeSpec(`storage: [{name: data, directive: "shared,16M", kind: filesystem, mount: MNT/data, machine: web}]`)
	s.apply()

	for _, operation := range []string{"create-volumes", "attach-volumes"} {
		request, err := os.ReadFile(asked + operation)
		if os.IsNotExist(err) && operation == "attach-volumes" {
			continue // the program has attached what it made
		}
		var got struct {
			Arguments []struct {
				Node struct {
					Name   string
					Labels map[string]string
				}
			}
		}
		if err == nil {
			err = json.Unmarshal(request, &got)
		}
		if err != nil || len(got.Arguments) != 1 || got.Arguments[0].Node.Name != "web" || got.Arguments[0].Node.Labels["zone"] != "east" {
			t.Errorf("%s was asked %s (%v)", operation, request, err)
		}
	}
	s.must("remove", "data", "--wait")
	agent.stop()
	server.stop()
	s.wantNoStorageIn("web")
}
