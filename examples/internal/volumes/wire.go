//go:build linux

// Package volumes keeps volumes as files, for the examples of a storage provider's program. It
// reads requests and writes answers as docs/reference/program-provider.md describes them.
package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
)

// Argument and Result have the members that the examples need. There are more.
type Argument struct {
	Volume     string            `json:"volume"`
	VolumeID   string            `json:"volume-id"`
	SizeMiB    uint64            `json:"size-mib"`
	Attributes map[string]any    `json:"attributes"`
	Tags       map[string]string `json:"tags"`
	Machine    string            `json:"machine"`
	InstanceID string            `json:"instance-id"`
	ReadOnly   bool              `json:"read-only"`
}

// Result is the result for one argument.
type Result struct {
	Error      *failure    `json:"error,omitempty"`
	VolumeID   string      `json:"volume-id,omitempty"`
	SizeMiB    uint64      `json:"size-mib,omitempty"`
	Attachment *Attachment `json:"attachment,omitempty"`

	Tags     map[string]string `json:"tags,omitempty"`
	Attached bool              `json:"attached,omitempty"`
	Machine  string            `json:"machine,omitempty"`
}

// Attachment says how a machine finds the device of a volume.
type Attachment struct {
	DeviceName string `json:"device-name,omitempty"`
	BusAddress string `json:"bus-address,omitempty"`
	ReadOnly   bool   `json:"read-only"`
	Plan       *Plan  `json:"plan,omitempty"`
}

// Plan says what the machine must do before the device appears.
type Plan struct {
	DeviceType string            `json:"device-type"`
	Attributes map[string]string `json:"attributes"`
}

type failure struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
}

// coded is an error with a code, which says more than that a retry may help.
type coded struct {
	error
	code string
}

// NotValid returns an error with the code not-valid.
func NotValid(format string, args ...any) error {
	return coded{fmt.Errorf(format, args...), "not-valid"}
}

func codeOf(err error) string {
	var c coded
	if errors.As(err, &c) {
		return c.code
	}
	if errors.Is(err, os.ErrNotExist) {
		return "not-found"
	}
	return ""
}

// Operations are the operations of a program, by name, besides those that [Main] adds.
type Operations map[string]func(Argument) (Result, error)

// Main is the main function of a program. It opens the volumes, which prepare completes, and carries
// out the operation that the program's argument names.
func Main(prepare func(*Dir) (Operations, error)) {
	if err := run(prepare); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(prepare func(*Dir) (Operations, error)) error {
	d, unlock, err := open()
	if err != nil {
		return err
	}
	defer unlock()
	operations := Operations{
		"create-volumes": d.Create, "destroy-volumes": d.Destroy, "release-volumes": d.Release, "describe-volumes": d.Describe,
	}
	own, err := prepare(d)
	if err != nil {
		return err
	}
	maps.Copy(operations, own)
	return d.serve(operations)
}

// serve carries out the operation that the program's argument names, for each argument of the
// request on the standard input. If serve returns an error, the outcome is unknown for every volume:
// the program must fail, and all will be tried again.
func (d *Dir) serve(operations Operations) error {
	if len(os.Args) != 2 {
		return errors.New("usage: provider OPERATION, with a request on the standard input")
	}
	var request struct {
		Term      uint64
		Arguments []Argument
	}
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return err
	}
	if err := d.checkTerm(request.Term); err != nil {
		return err
	}
	results := []Result{}
	answer := map[string]any{}
	do, ok := operations[os.Args[1]]
	switch {
	case ok:
	case os.Args[1] == "list-volumes":
		var err error
		if results, err = d.List(); err != nil {
			return err
		}
		if d.Machine != nil {
			answer["machines-known"] = true
		}
	default:
		do = func(Argument) (Result, error) {
			return Result{}, coded{fmt.Errorf("this provider has no operation %s", os.Args[1]), "not-supported"}
		}
	}
	for _, arg := range request.Arguments {
		r, err := do(arg)
		if err != nil {
			r = Result{Error: &failure{Message: err.Error(), Code: codeOf(err)}}
		}
		results = append(results, r)
	}
	answer["results"] = results
	return json.NewEncoder(os.Stdout).Encode(answer)
}
