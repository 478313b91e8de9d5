package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The search of several servers and machines (see TestCluster) uses two programs, which are this one
// with an environment variable: the referee, and the writer.
const (
	programVariable = "STOWAGE_E2E_PROGRAM"
	refereeVariable = "STOWAGE_E2E_REFEREE" // its directory
)

// otherProgram runs the program that the environment asks for.
func otherProgram() (status int, ok bool) {
	var err error
	switch os.Getenv(programVariable) {
	case "referee":
		err = refereeMain()
	case "writer":
		err = writerMain()
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

// referee is the provider of servers and agents. It runs the program of examples/shared-directory,
// sometimes with a delay, and notes which machine has connected which volume. What must never happen
// is appended to the file violations.
//
// Its directory has the directories shared, with the program; connected, with a file for each volume
// that is connected, which has the machine and the device; and isolated, with a file for each machine
// that has no access to storage.
type referee struct {
	dir string
	// knows says what the provider can do: "terms" compares the terms of servers, "list" lists which
	// machine has a volume, "nothing" does neither.
	knows string
}

// refereeArguments are the parts of a request and of its answer that the referee reads.
type refereeArguments struct {
	Arguments []struct {
		VolumeID   string            `json:"volume-id"`
		Machine    string            `json:"machine"`
		Attributes map[string]string `json:"attributes"`
	} `json:"arguments"`
}

type refereeResults struct {
	Results []map[string]json.RawMessage `json:"results"`
}

func refereeMain() error {
	r := referee{dir: os.Getenv(refereeVariable)}
	knows, err := os.ReadFile(r.path("knows"))
	if err != nil {
		return err
	}
	r.knows = string(knows)
	return r.run(os.Args[1])
}

func (r referee) path(elements ...string) string {
	return filepath.Join(append([]string{r.dir}, elements...)...)
}

func (r referee) run(operation string) error {
	request, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var asked refereeArguments
	if operation != "create-volumes" { // whose attributes may be anything
		if err := json.Unmarshal(request, &asked); err != nil {
			return err
		}
	}
	if r.knows != "terms" {
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(request, &whole); err != nil {
			return err
		}
		delete(whole, "term")
		if request, err = json.Marshal(whole); err != nil {
			return err
		}
	}
	delay()
	var answer []byte
	if operation == "connect-volumes" || operation == "disconnect-volumes" {
		answer, err = r.runOnMachine(operation, request, asked)
	} else {
		answer, err = r.runProgram(operation, request)
	}
	if err != nil {
		return err
	}
	var results refereeResults
	if err := json.Unmarshal(answer, &results); err != nil {
		return err
	}
	if operation == "attach-volumes" {
		for i, a := range asked.Arguments {
			if _, failed := results.Results[i]["error"]; failed {
				continue
			}
			if err := r.attached(a.VolumeID, a.Machine); err != nil {
				return err
			}
		}
	}
	if operation == "list-volumes" && r.knows != "list" {
		for _, result := range results.Results {
			delete(result, "machine")
		}
		if answer, err = json.Marshal(results); err != nil {
			return err
		}
	}
	delay()
	_, err = os.Stdout.Write(answer)
	return err
}

// runProgram runs an operation of the program.
func (r referee) runProgram(operation string, request []byte) ([]byte, error) {
	cmd := exec.Command(r.path("shared", "provider"), operation)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	return cmd.Output()
}

// runOnMachine runs an operation of an agent, and notes what the machine has connected before it
// connects it and after it has disconnected it.
func (r referee) runOnMachine(operation string, request []byte, asked refereeArguments) (answer []byte, err error) {
	err = r.locked(func() error {
		var connections []connection
		for _, a := range asked.Arguments {
			machine, _, _ := strings.Cut(a.Attributes["holder"], " ")
			if _, err := os.Stat(r.path("isolated", machine)); err == nil {
				return fmt.Errorf("%s has no access to storage", machine)
			}
			connections = append(connections, connection{volume: a.Attributes["volume-id"], machine: machine})
		}
		if operation == "connect-volumes" {
			for _, v := range connections {
				if err := r.connect(v); err != nil {
					return err
				}
			}
		}
		var results refereeResults
		if answer, err = r.runProgram(operation, request); err != nil {
			return err
		}
		if err := json.Unmarshal(answer, &results); err != nil {
			return err
		}
		for i, v := range connections {
			text, failed := results.Results[i]["error"]
			var attachment struct {
				Device string `json:"device-name"`
			}
			switch {
			case operation == "connect-volumes" && failed: // it has no device then
				err = r.disconnected(v)
			case operation == "connect-volumes":
				if err = json.Unmarshal(results.Results[i]["attachment"], &attachment); err == nil {
					v.device = "/dev/" + attachment.Device
					err = r.note(v)
				}
			case failed:
				fmt.Fprintf(os.Stderr, "%s is not disconnected: %s\n", v.volume, text)
			default:
				err = r.disconnected(v)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return answer, err
}

// delay sometimes takes a while, as a network does.
func delay() {
	switch n := rand.IntN(1000); {
	case n < 5:
		time.Sleep(time.Duration(rand.IntN(20)) * time.Second)
	case n < 100:
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
	}
}

// locked runs fn while no other referee, nor the test, reads or changes what is noted.
func (r referee) locked(fn func() error) error {
	lock, err := os.OpenFile(r.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return fn()
}

// connection is a volume that a machine has connected.
type connection struct {
	volume, machine string
	device          string // path of the device; "": it is not known yet
}

// volume returns the path of a volume's file.
func (r referee) volume(id string) string { return r.path("shared", "volumes", id) }

// connections returns what a machine has connected.
func (r referee) connections(machine string) ([]connection, error) {
	volumes, err := os.ReadDir(r.path("connected"))
	var all []connection
	for _, v := range volumes {
		found, err := r.connectionOf(v.Name())
		if err != nil {
			return nil, err
		}
		if found.machine == machine {
			all = append(all, found)
		}
	}
	return all, err
}

// connectionOf returns which machine has connected a volume; "" if none has.
func (r referee) connectionOf(id string) (connection, error) {
	found := connection{volume: id}
	text, err := os.ReadFile(r.path("connected", id))
	if errors.Is(err, os.ErrNotExist) {
		return found, nil
	}
	found.machine, found.device, _ = strings.Cut(string(text), " ")
	return found, err
}

func (r referee) note(v connection) error {
	return os.WriteFile(r.path("connected", v.volume), []byte(v.machine+" "+v.device), 0o600)
}

// connect notes that a machine connects a volume.
func (r referee) connect(v connection) error {
	other, err := r.connectionOf(v.volume)
	if err != nil {
		return err
	}
	if other.machine == v.machine {
		return nil
	}
	if other.machine != "" {
		if err := r.violation("%s connects %s, which %s has connected", v.machine, v.volume, other.machine); err != nil {
			return err
		}
	}
	return r.note(v)
}

// disconnected notes that a machine does not have a volume connected.
func (r referee) disconnected(v connection) error {
	other, err := r.connectionOf(v.volume)
	if err != nil || other.machine != v.machine {
		return err
	}
	return os.Remove(r.path("connected", v.volume))
}

func (r referee) attached(id, machine string) error {
	return r.locked(func() error {
		other, err := r.connectionOf(id)
		if err != nil || other.machine == "" || other.machine == machine {
			return err
		}
		return r.violation("%s is attached to %s, and %s has connected it", id, machine, other.machine)
	})
}

func (r referee) violation(format string, args ...any) error {
	f, err := os.OpenFile(r.path("violations"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
	return err
}

// open opens the device of a volume that a machine has connected, so that it stays what it is until
// close is called.
func (r referee) open(id, machine string) (device string, close func(), err error) {
	found, err := r.connectionOf(id)
	if err != nil {
		return "", nil, err
	}
	if found.machine != machine || found.device == "" {
		return "", nil, fmt.Errorf("%s has not connected %s", machine, id)
	}
	f, err := os.Open(found.device)
	if err != nil {
		return "", nil, err
	}
	backing, err := os.ReadFile("/sys/block/" + filepath.Base(found.device) + "/loop/backing_file")
	if err == nil && strings.TrimSpace(string(backing)) != r.volume(id) {
		err = fmt.Errorf("%s is that of %s", found.device, backing)
	}
	if err != nil {
		f.Close()
		return "", nil, err
	}
	return found.device, func() { f.Close() }, nil
}

// writerMain replaces the number on a device, or in a file of a mounted filesystem, with another one,
// durably, and prints the one before. The arguments are the device or the mount point, and the number.
func writerMain() error {
	f, err := openNumber(os.Args[1])
	if err != nil {
		return err
	}
	defer f.Close()
	const length = 10
	before, err := io.ReadAll(io.LimitReader(f, length))
	if err != nil {
		return err
	}
	text := strings.Trim(string(before), " \n\x00")
	if text != "" {
		if _, err := strconv.Atoi(text); err != nil {
			return fmt.Errorf("found %q", before)
		}
	}
	if _, err := f.WriteAt(fmt.Appendf(nil, "%*s\n", length-1, os.Args[2]), 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	fmt.Print(text)
	return nil
}

func openNumber(path string) (*os.File, error) {
	if strings.HasPrefix(path, "/dev/") {
		return os.OpenFile(path, os.O_RDWR, 0)
	}
	root, err := os.OpenRoot(path) // which keeps what is mounted there
	if err != nil {
		return nil, err
	}
	defer root.Close()
	at, err := root.Stat(".")
	if err != nil {
		return nil, err
	}
	above, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if at.Sys().(*syscall.Stat_t).Dev == above.Sys().(*syscall.Stat_t).Dev {
		return nil, errors.New("nothing is mounted")
	}
	return root.OpenFile("number", os.O_CREATE|os.O_RDWR, 0o600)
}
