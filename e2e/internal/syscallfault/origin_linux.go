package syscallfault

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
)

// Class is a class of similar calls: the same step makes them from the same place in the
// program, and they are about files of one kind.
type Class struct {
	Step   string // from Injector.Mark
	Call   string // one of Calls
	Kind   string // of file; and the command of an ioctl
	Origin string // functions of the program, innermost first, or another program's name
}

// ID returns a short hash, which stays the same as long as the code does.
func (c Class) ID() string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s", c.Step, c.Call, c.Kind, c.Origin)
	return hex.EncodeToString(h.Sum(nil))
}

// program is a Go program; the zero value is any other program.
type program struct {
	from, to  uint64 // the code
	functions []elf.Symbol
}

// module is the prefix of the functions that identify where a call is made.
const module = "github.com/stowage-io/stowage/"

// places is the number of functions that identify the place: more would distinguish calls that
// the same code makes for different callers.
const places = 4

// readProgram reads the positions of the functions of a Go program.
func readProgram(path string) program {
	f, err := elf.Open(path)
	if err != nil {
		return program{}
	}
	defer f.Close()
	code := f.Section(".text")
	if code == nil || f.Section(".gopclntab") == nil || f.Type != elf.ET_EXEC {
		return program{}
	}
	p := program{from: code.Addr, to: code.Addr + code.Size}
	symbols, _ := f.Symbols() // the program may be stripped
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			p.functions = append(p.functions, s)
		}
	}
	slices.SortFunc(p.functions, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
	return p
}

func (p program) has(pc uint64) bool { return p.from <= pc && pc < p.to }

// place returns a function of the module, and the offset of a return address in it. In a
// stripped program each address is a place.
func (p program) place(pc uint64) (string, bool) {
	if len(p.functions) == 0 {
		return fmt.Sprintf("%#x", pc), true
	}
	i, _ := slices.BinarySearchFunc(p.functions, pc, func(s elf.Symbol, pc uint64) int {
		if s.Value < pc {
			return -1
		}
		return 1
	})
	if i == 0 || !strings.HasPrefix(p.functions[i-1].Name, module) {
		return "", false
	}
	f := p.functions[i-1]
	return fmt.Sprintf("%s+%#x", f.Name, pc-f.Value), true
}

// origin returns where a call is made: the innermost functions of the module on the stack of
// its goroutine, or the name of a program that is not written in Go.
func (i *Injector) origin(n *notification) string {
	exe := fmt.Sprintf("/proc/%d/exe", n.pid)
	path, err := os.Readlink(exe)
	if err != nil {
		return ""
	}
	p, known := i.programs[path]
	if !known {
		p = readProgram(exe)
		i.programs[path] = p
	}
	most := places
	if len(p.functions) == 0 {
		most *= 4 // most addresses are in Go's own packages
	}
	var all []string
	if p.to > 0 {
		for _, pc := range callers(n, p) {
			if place, ok := p.place(pc); ok && len(all) < most {
				all = append(all, place)
			}
		}
	}
	if len(all) == 0 {
		return path[strings.LastIndexByte(path, '/')+1:]
	}
	return strings.Join(all, " ")
}

const (
	// mostStack is how much of a stack is read.
	mostStack = 32 << 10
	// mostFirst is how far the innermost frame pointer may be from the top of the stack: the
	// function that makes the call stores none.
	mostFirst = 512
)

// callers returns the return addresses on the stack of a thread, innermost first, by its frame
// pointers.
func callers(n *notification, p program) []uint64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", n.pid))
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(status)) // number, six arguments, stack pointer, program counter
	var sp uint64
	if len(fields) != 9 {
		return nil
	}
	if _, err := fmt.Sscanf(fields[7], "0x%x", &sp); err != nil {
		return nil
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.pid))
	if err != nil {
		return nil
	}
	defer memory.Close()
	stack := make([]byte, mostStack)
	length, _ := memory.ReadAt(stack, int64(sp)) // the stack may end before
	return framePointers(stack[:length], sp, p)
}

// framePointers follows the frame pointers on a stack whose top is at sp. The return address
// of a function is stored above its frame pointer.
func framePointers(stack []byte, sp uint64, p program) []uint64 {
	word := func(at uint64) (uint64, bool) {
		if at < sp || at-sp > mostStack || at-sp+8 > uint64(len(stack)) {
			return 0, false
		}
		return binary.LittleEndian.Uint64(stack[at-sp:]), true
	}
	// frame returns the next frame pointer and the return address in the frame at an address.
	frame := func(at uint64) (next, pc uint64, ok bool) {
		next, ok = word(at)
		pc, there := word(at + 8)
		return next, pc, ok && there && p.has(pc) && (next == 0 || next > at)
	}
	for at := sp; at < sp+mostFirst; at += 8 {
		next, pc, ok := frame(at)
		if !ok || next == 0 {
			continue
		}
		if _, _, ok := frame(next); !ok {
			continue
		}
		pcs := []uint64{pc}
		for next != 0 {
			if next, pc, ok = frame(next); !ok {
				break
			}
			pcs = append(pcs, pc)
		}
		return pcs
	}
	return nil
}
