package confine

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h), which a filter sees of a call: 32 bits of a number, 32 bits of an
// architecture, 64 bits of an instruction pointer, and six arguments of 64 bits, whose lower half comes first: both
// architectures are little endian.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16

	argLen = 8
	args   = 6
)

// policy is what a filter does with each call.
type policy struct {
	// calls is what is run for each call: its paths all end in a return, and it may load arguments.
	calls     map[uint32][]bpf.Instruction
	otherwise uint32 // the action for all other calls, those of x32 too: their numbers have one more bit set
	badArch   uint32 // the action for calls of another architecture, whose numbers mean other calls
}

// assemble makes the program. The kernel runs it at each system call that is not known to be allowed whatever its
// arguments are (Linux 5.11), so it looks for the number in a binary tree.
func (p *policy) assemble() ([]unix.SockFilter, error) {
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: p.badArch},
		bpf.LoadAbsolute{Off: offNr, Size: 4},
	}
	code = append(code, p.search(slices.Sorted(maps.Keys(p.calls)))...)
	if len(code) > unix.BPF_MAXINSNS { // the kernel would say EINVAL, as it does where it knows no listener
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

// search finds the number that is loaded among these, in ascending order, and runs what there is for it.
func (p *policy) search(numbers []uint32) []bpf.Instruction {
	switch len(numbers) {
	case 0:
		return []bpf.Instruction{bpf.RetConstant{Val: p.otherwise}}
	case 1:
		found, others := p.calls[numbers[0]], []bpf.Instruction{bpf.RetConstant{Val: p.otherwise}}
		return branch(bpf.JumpEqual, numbers[0], found, others)
	}
	middle := len(numbers) / 2
	return branch(bpf.JumpGreaterOrEqual, numbers[middle], p.search(numbers[middle:]), p.search(numbers[:middle]))
}

// branch tests the loaded number, and runs yes or no, both of which end in returns. A conditional jump skips at most 255
// instructions. If yes is longer, an unconditional jump, whose distance has 32 bits, skips it.
func branch(cond bpf.JumpTest, v uint32, yes, no []bpf.Instruction) []bpf.Instruction {
	code := []bpf.Instruction{bpf.JumpIf{Cond: cond, Val: v, SkipFalse: uint8(len(yes))}}
	if len(yes) > 255 {
		code = []bpf.Instruction{bpf.JumpIf{Cond: cond, Val: v, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(yes))}}
	}
	return slices.Concat(code, yes, no)
}

// check says what of a call's conditions cannot be made into a filter.
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

// alternative allows a call whose arguments meet all conditions, and goes on behind its end if they do not.
func alternative(conditions []Arg) []bpf.Instruction {
	var code []bpf.Instruction
	for _, a := range conditions {
		at := offArgs + argLen*uint32(a.Index)
		code = append(code, half(at, uint32(a.Mask), uint32(a.Value))...)
		code = append(code, half(at+4, uint32(uint64(a.Mask)>>32), uint32(uint64(a.Value)>>32))...)
	}
	code = append(code, bpf.RetConstant{Val: actionAllow})
	// Each jump leads to the end. That is near enough: six arguments are 37 instructions at most.
	for i, in := range code {
		if j, ok := in.(bpf.JumpIf); ok {
			j.SkipFalse = uint8(len(code) - 1 - i)
			code[i] = j
		}
	}
	return code
}

// half compares half an argument: the bits of mask are to have this value. If they do not, its jump is taken, whose
// distance alternative fills in.
func half(at, mask, value uint32) []bpf.Instruction {
	load := bpf.LoadAbsolute{Off: at, Size: 4}
	compare := bpf.JumpIf{Cond: bpf.JumpEqual, Val: value}
	switch {
	case mask == 0 && value == 0:
		return nil // whatever it is
	case mask == ^uint32(0):
		return []bpf.Instruction{load, compare}
	}
	return []bpf.Instruction{load, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask}, compare}
}
