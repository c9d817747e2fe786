package confine

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets and sizes in struct seccomp_data (linux/seccomp.h), a filter's input, and its number of arguments. These have
// 64 bits, lower half first: amd64 and arm64 are little endian.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16

	argLen = 8
	args   = 6
)

type policy struct {
	// by number: the code for a call, in which each path ends with a return; it may load arguments
	calls     map[uint32][]bpf.Instruction
	otherwise uint32 // the action for other calls, x32's too, whose numbers have one more bit set
	badArch   uint32 // the action for calls of another architecture
}

// assemble makes the program, or returns an error if it is too long. The kernel runs the program for each call (since
// Linux 5.11 not for calls that are always allowed), so the program finds the number by a binary tree.
func (p *policy) assemble() ([]unix.SockFilter, error) {
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: p.badArch},
		bpf.LoadAbsolute{Off: offNr, Size: 4},
	}
	code = append(code, p.search(slices.Sorted(maps.Keys(p.calls)))...)
	if len(code) > unix.BPF_MAXINSNS { // Calls would take the kernel's EINVAL for a lack of listeners
		return nil, fmt.Errorf("a filter of %d instructions: the kernel takes %d", len(code), unix.BPF_MAXINSNS)
	}
	raw, err := bpf.Assemble(code)
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return filter, nil
}

func (p *policy) search(numbers []uint32) []bpf.Instruction {
	switch len(numbers) {
	case 0:
		return []bpf.Instruction{bpf.RetConstant{Val: p.otherwise}}
	case 1:
		found, otherwise := p.calls[numbers[0]], []bpf.Instruction{bpf.RetConstant{Val: p.otherwise}}
		return branch(bpf.JumpEqual, numbers[0], found, otherwise)
	}
	middle := len(numbers) / 2
	return branch(bpf.JumpGreaterOrEqual, numbers[middle], p.search(numbers[middle:]), p.search(numbers[:middle]))
}

// branch returns code that compares the loaded number with v, and goes on with yes if cond holds, else with no; both
// end in returns. A conditional jump skips at most 255 instructions, an unconditional one any number.
func branch(cond bpf.JumpTest, v uint32, yes, no []bpf.Instruction) []bpf.Instruction {
	code := []bpf.Instruction{bpf.JumpIf{Cond: cond, Val: v, SkipFalse: uint8(len(yes))}}
	if len(yes) > 255 {
		code = []bpf.Instruction{bpf.JumpIf{Cond: cond, Val: v, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(yes))}}
	}
	return slices.Concat(code, yes, no)
}

func (c *Call) check() error {
	var seen [args]bool
	for _, a := range c.If {
		if a.Index < 0 || a.Index >= args {
			return fmt.Errorf("%s: no argument %d", c.Name, a.Index)
		}
		if seen[a.Index] {
			return fmt.Errorf("%s: two conditions of argument %d", c.Name, a.Index)
		}
		seen[a.Index] = true
	}
	return nil
}

func alternative(conditions []Arg) []bpf.Instruction {
	var code []bpf.Instruction
	for _, a := range conditions {
		off := offArgs + argLen*uint32(a.Index)
		code = append(code, half(off, uint32(a.Mask), uint32(a.Value))...)
		code = append(code, half(off+4, uint32(uint64(a.Mask)>>32), uint32(uint64(a.Value)>>32))...)
	}
	code = append(code, bpf.RetConstant{Val: actionAllow})
	// A comparison that fails jumps to the end: conditions on six arguments have at most 37 instructions.
	for i, in := range code {
		if j, ok := in.(bpf.JumpIf); ok {
			j.SkipFalse = uint8(len(code) - 1 - i)
			code[i] = j
		}
	}
	return code
}

func half(off, mask, value uint32) []bpf.Instruction {
	load := bpf.LoadAbsolute{Off: off, Size: 4}
	compare := bpf.JumpIf{Cond: bpf.JumpEqual, Val: value}
	switch {
	case mask == 0 && value == 0:
		return nil
	case mask == ^uint32(0):
		return []bpf.Instruction{load, compare}
	}
	return []bpf.Instruction{load, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask}, compare}
}
