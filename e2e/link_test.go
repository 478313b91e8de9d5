package e2e

import (
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// networkLink carries frames between two network interfaces, in this process, so that it can delay and
// lose some of them. The interfaces are gone when it is closed.
type networkLink struct {
	bridge, inside string // names of the interfaces
	ends           [2]*os.File
	carrying       sync.WaitGroup

	mu      sync.Mutex
	latency time.Duration // of each frame, in each direction
	loss    float64       // the part of the frames that is lost
}

func newNetworkLink(name string) (*networkLink, error) {
	l := &networkLink{bridge: name, inside: name + "i"}
	for i, name := range []string{l.bridge, l.inside} {
		var err error
		if l.ends[i], err = openTAP(name); err != nil {
			if i > 0 {
				l.ends[0].Close()
			}
			return nil, err
		}
	}
	l.carry(l.ends[0], l.ends[1])
	l.carry(l.ends[1], l.ends[0])
	return l, nil
}

// openTAP makes a network interface whose frames are read from and written to a file.
func openTAP(name string) (*os.File, error) {
	const path = "/dev/net/tun"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "making " + name + " with", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// degrade lets the link delay each frame, and lose some; 0, 0: neither.
func (l *networkLink) degrade(latency time.Duration, loss float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency, l.loss = latency, loss
}

// frame is a frame that arrives at a time.
type frame struct {
	data []byte
	due  time.Time
}

// carry carries frames in one direction until the link is closed.
func (l *networkLink) carry(from, to *os.File) {
	const most = 1000 // what comes when more are on their way is lost
	frames := make(chan frame, most)
	l.carrying.Go(func() {
		for f := range frames {
			time.Sleep(time.Until(f.due))
			_, _ = to.Write(f.data) // a frame for an interface that is down is lost
		}
	})
	l.carrying.Go(func() {
		defer close(frames)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return // it is closed, or its namespace has gone
			}
			l.mu.Lock()
			latency, loss := l.latency, l.loss
			l.mu.Unlock()
			if rand.Float64() < loss {
				continue
			}
			select {
			case frames <- frame{append([]byte(nil), buffer[:n]...), time.Now().Add(latency)}:
			default:
			}
		}
	})
}

func (l *networkLink) close() {
	for _, end := range l.ends {
		end.Close()
	}
	l.carrying.Wait()
}
