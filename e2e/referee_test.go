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
// Its directory has the directories shared, with the program, and connected, with a file for each
// volume that is connected, which has the machine.
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
	if operation == "connect-volumes" {
		for _, a := range asked.Arguments {
			machine, _, _ := strings.Cut(a.Attributes["holder"], " ")
			if err := r.connect(a.Attributes["volume-id"], machine); err != nil {
				return err
			}
		}
	}
	cmd := exec.Command(r.path("shared", "provider"), operation)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	answer := out.Bytes()
	var results refereeResults
	if err := json.Unmarshal(answer, &results); err != nil {
		return err
	}
	for i, a := range asked.Arguments {
		if _, failed := results.Results[i]["error"]; failed {
			if operation == "connect-volumes" { // it has no device then
				machine, _, _ := strings.Cut(a.Attributes["holder"], " ")
				if err := r.disconnected(a.Attributes["volume-id"], machine); err != nil {
					return err
				}
			}
			continue
		}
		switch operation {
		case "attach-volumes":
			err = r.attached(a.VolumeID, a.Machine)
		case "disconnect-volumes":
			machine, _, _ := strings.Cut(a.Attributes["holder"], " ")
			err = r.disconnected(a.Attributes["volume-id"], machine)
		}
		if err != nil {
			return err
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

// connectedTo returns the machine that has connected a volume, or "".
func (r referee) connectedTo(id string) (string, error) {
	machine, err := os.ReadFile(r.path("connected", id))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(machine), err
}

func (r referee) connect(id, machine string) error {
	return r.locked(func() error {
		other, err := r.connectedTo(id)
		if err != nil {
			return err
		}
		if other != "" && other != machine {
			if err := r.violation("%s connects %s, which %s has connected", machine, id, other); err != nil {
				return err
			}
		}
		return os.WriteFile(r.path("connected", id), []byte(machine), 0o600)
	})
}

func (r referee) disconnected(id, machine string) error {
	return r.locked(func() error {
		other, err := r.connectedTo(id)
		if err != nil || other != machine {
			return err
		}
		return os.Remove(r.path("connected", id))
	})
}

func (r referee) attached(id, machine string) error {
	return r.locked(func() error {
		other, err := r.connectedTo(id)
		if err != nil || other == "" || other == machine {
			return err
		}
		return r.violation("%s is attached to %s, and %s has connected it", id, machine, other)
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

// writerMain replaces the number in a file of a mounted filesystem with another one, durably, and
// prints the one before. The arguments are the mount point and the number.
func writerMain() error {
	dir, number := os.Args[1], os.Args[2]
	root, err := os.OpenRoot(dir) // which keeps what is mounted there
	if err != nil {
		return err
	}
	defer root.Close()
	at, err := root.Stat(".")
	if err != nil {
		return err
	}
	above, err := os.Stat(filepath.Dir(dir))
	if err != nil {
		return err
	}
	if at.Sys().(*syscall.Stat_t).Dev == above.Sys().(*syscall.Stat_t).Dev {
		return errors.New("nothing is mounted")
	}
	f, err := root.OpenFile("number", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	before, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if len(before) > 0 {
		if _, err := strconv.Atoi(strings.TrimSpace(string(before))); err != nil {
			return fmt.Errorf("the file has %q", before)
		}
	}
	if _, err := f.WriteAt([]byte(fmt.Sprintf("%9s\n", number)), 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	fmt.Print(strings.TrimSpace(string(before)))
	return nil
}
