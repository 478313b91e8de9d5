//go:build linux

package record

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLockHeldByAnotherProcess(t *testing.T) {
	store := open(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lockHelperEnv+"="+store.Dir())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "locked\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_, err = store.lock(context.Background(), 20*time.Millisecond)
	want := fmt.Sprintf("locking record directory %s: it is in use by process %d", store.Dir(), cmd.Process.Pid)
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	lock(t, store)()
}

func TestParseHolder(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 11 fe:00:5678 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fe:01:5678 0 EOF
3: FLOCK  ADVISORY  WRITE 13 fe:00:5678 0 EOF
3: -> FLOCK  ADVISORY  WRITE 14 fe:00:9 0 EOF
4: FLOCK  ADVISORY  WRITE -1 fe:00:10 0 EOF
garbage
`
	dev := unix.Mkdev(0xfe, 0)
	for ino, want := range map[uint64]int{5678: 13, 9: 0, 10: 0, 11: 0} {
		if got := parseHolder(strings.NewReader(locks), dev, ino); got != want {
			t.Errorf("inode %d: process %d, want %d", ino, got, want)
		}
	}
}

func TestBootID(t *testing.T) {
	id, err := BootID()
	if err != nil || len(id) != 36 || ValidateID(id) != nil {
		t.Errorf("%q, %v", id, err)
	}
}

// lockHelperEnv makes the test binary the other process of TestLockHeldByAnotherProcess.
const lockHelperEnv = "RECORD_TEST_LOCK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(lockHelperEnv); dir != "" {
		if err := holdLock(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holdLock holds the lock until standard input is closed.
func holdLock(dir string) error {
	store, err := Open(dir)
	if err != nil {
		return err
	}
	unlock, err := store.Lock(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Println("locked")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
