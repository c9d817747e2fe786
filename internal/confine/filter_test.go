package confine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	gbpf "gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"pgregory.net/rapid"

	"vnic.dev/vnic/internal/testkit"
)

// reference builds with gVisor's package a filter that must return the same actions as the one of function program.
func reference(list []Call, otherwise seccomp.Action) ([]gbpf.Instruction, error) {
	rules := seccomp.NewSyscallRules()
	for _, c := range list {
		if len(c.If) == 0 && !rules.Has(c.Nr) {
			rules.Set(c.Nr, seccomp.MatchAll{})
		}
	}
	for _, c := range list {
		if len(c.If) == 0 {
			continue
		}
		if rules.Has(c.Nr) {
			if _, all := rules.Get(c.Nr).(seccomp.MatchAll); all {
				continue
			}
		}
		var args seccomp.PerArg
		for i := range args {
			args[i] = seccomp.AnyValue{}
		}
		for _, a := range c.If {
			args[a.Index] = seccomp.MaskedEqual(a.Mask, a.Value)
			if a.Mask == ^uintptr(0) {
				args[a.Index] = seccomp.EqualTo(a.Value)
			}
		}
		rules.Add(c.Nr, args)
	}
	absent := seccomp.NewSyscallRules()
	for _, c := range Absent {
		absent.Set(c.Nr, seccomp.MatchAll{})
	}
	p := seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: rules, Action: seccomp.Allow},
		{Rules: absent, Action: seccomp.ReturnError.Code(uint16(unix.ENOSYS))}},
		Options: seccomp.ProgramOptions{DefaultAction: otherwise,
			BadArchAction: seccomp.ReturnError.Code(uint16(unix.EPERM))}}
	instructions, _, err := p.Build()
	return instructions, err
}

func referenceForbidding(list []uintptr) ([]gbpf.Instruction, error) {
	rules := seccomp.NewSyscallRules()
	for _, nr := range list {
		rules.Set(nr, seccomp.MatchAll{})
	}
	p := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: rules, Action: seccomp.ReturnError.Code(uint16(unix.EPERM))}},
		Options:  seccomp.ProgramOptions{DefaultAction: seccomp.Allow, BadArchAction: seccomp.Allow},
	}
	instructions, _, err := p.Build()
	return instructions, err
}

type data struct {
	nr, arch uint32
	ip       uint64
	args     [6]uint64
}

type filters struct {
	theirs, ours gbpf.Program
	vm           *bpf.VM
	in, swapped  [64]byte
	tried        int
}

func newFilters(t rapid.TB, theirs []gbpf.Instruction, ours []unix.SockFilter) *filters {
	t.Helper()
	f := &filters{}
	var err error
	if f.theirs, err = gbpf.Compile(theirs, false); err != nil {
		t.Fatal(err)
	}
	var code []gbpf.Instruction
	var raw []bpf.RawInstruction
	for _, in := range ours {
		code = append(code, gbpf.RawInstruction(in.Code, in.Jt, in.Jf, in.K))
		raw = append(raw, bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	if f.ours, err = gbpf.Compile(code, false); err != nil {
		t.Fatal(err)
	}
	all, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("not all instructions are known to x/net/bpf")
	}
	if f.vm, err = bpf.NewVM(all); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *filters) same(t rapid.TB, d data) uint32 {
	t.Helper()
	f.tried++
	b := &f.in
	binary.NativeEndian.PutUint32(b[offNr:], d.nr)
	binary.NativeEndian.PutUint32(b[offArch:], d.arch)
	binary.NativeEndian.PutUint64(b[8:], d.ip)
	for i, v := range d.args {
		binary.NativeEndian.PutUint64(b[offArgs+8*i:], v)
	}
	for i := 0; i < len(b); i += 4 { // the VM is for packets: it loads big endian
		binary.BigEndian.PutUint32(f.swapped[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	want, err1 := gbpf.Exec[gbpf.NativeEndian](f.theirs, b[:])
	got, err2 := gbpf.Exec[gbpf.NativeEndian](f.ours, b[:])
	again, err3 := f.vm.Run(f.swapped[:])
	if err1 != nil || err2 != nil || err3 != nil || got != want || uint32(again) != want {
		t.Fatalf("%+v: gVisor's filter gives %#x, ours %#x and %#x (%v, %v, %v)", d, want, got, again, err1, err2, err3)
	}
	return got
}

const otherArch = unix.AUDIT_ARCH_X86_64 ^ unix.AUDIT_ARCH_AARCH64 ^ auditArch

// everyNumber compares the filters for the numbers 0 to 600, which include all system calls, and for some others, on
// several architectures. It returns how often each action came on auditArch, with arguments of 0.
func (f *filters) everyNumber(t rapid.TB) map[uint32]int {
	t.Helper()
	const x32 = 1 << 30 // __X32_SYSCALL_BIT
	count := make(map[uint32]int)
	numbers := []uint32{math.MaxUint32, math.MaxInt32, 1 << 31, x32 - 1, 2*x32 - 1}
	for nr := range uint32(601) {
		numbers = append(numbers, nr, nr|x32, nr|1<<31, nr<<16, nr|1<<16)
	}
	ones := [6]uint64{0: math.MaxUint64, 1: math.MaxUint64, 2: math.MaxUint64, 3: math.MaxUint64, 4: math.MaxUint64,
		5: math.MaxUint64}
	for _, nr := range numbers {
		for _, arch := range []uint32{auditArch, otherArch, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0, auditArch + 1} {
			f.same(t, data{nr, arch, math.MaxUint64, [6]uint64{}})
			f.same(t, data{nr, arch, 0, ones})
			f.same(t, data{nr, arch, 0x401000, [6]uint64{1, 2, 3, 4, 5, 6}})
		}
		count[f.same(t, data{nr: nr, arch: auditArch})]++
	}
	return count
}

// around returns values for an argument: some that meet one of the conditions, if any can, some near these, and others.
func around(conditions []Arg) []uint64 {
	values := map[uint64]bool{0: true, 1: true, 1 << 31: true, 1 << 32: true, math.MaxUint32: true, math.MaxInt64: true,
		1 << 63: true, math.MaxUint64: true}
	for _, a := range conditions {
		mask, v := uint64(a.Mask), uint64(a.Value)
		for _, x := range []uint64{v, v - 1, v + 1, ^v, mask, ^mask, v | ^mask, v | mask, v<<32 | v, v << 32, v | 1<<32,
			v - 1<<32, v & mask, v&mask | ^mask<<1} {
			values[x] = true
		}
		for bit := range 64 {
			values[v^1<<bit] = true
		}
	}
	return slices.Sorted(maps.Keys(values))
}

// everyArgument compares the filters for the calls that have conditions, with all combinations of the values of around
// for arguments with conditions. The other arguments are 0, then all ones.
func (f *filters) everyArgument(t rapid.TB, list []Call) {
	t.Helper()
	conditions := make(map[uintptr]*[6][]Arg)
	for _, c := range list {
		for _, a := range c.If {
			if conditions[c.Nr] == nil {
				conditions[c.Nr] = new([6][]Arg)
			}
			conditions[c.Nr][a.Index] = append(conditions[c.Nr][a.Index], a)
		}
	}
	for nr, about := range conditions {
		var values [6][]uint64
		for i := range values {
			if values[i] = []uint64{0}; len(about[i]) > 0 {
				values[i] = around(about[i])
			}
		}
		for _, rest := range []uint64{0, math.MaxUint64} {
			d := data{nr: uint32(nr), arch: auditArch}
			var try func(i int)
			try = func(i int) {
				if i == len(d.args) {
					f.same(t, d)
					return
				}
				for _, v := range values[i] {
					if d.args[i] = v; len(about[i]) == 0 {
						d.args[i] = rest
					}
					try(i + 1)
				}
			}
			try(0)
		}
	}
}

func lists() map[string][]Call {
	const writes = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC | unix.O_PATH
	serve := slices.Concat(GoRuntime(4711), Sockets, []Call{
		{Nr: unix.SYS_STATFS, Name: "statfs"},
		{Nr: unix.SYS_OPENAT, Name: "openat", If: []Arg{Without(2, writes)}},
		{Nr: unix.SYS_SENDMSG, Name: "sendmsg", If: []Arg{IsInt(0, 7)}},
		{Nr: unix.SYS_SECCOMP, Name: "seccomp"},
		{Nr: unix.SYS_PRCTL, Name: "prctl", If: []Arg{IsInt(0, unix.PR_SET_NO_NEW_PRIVS)}},
		{Nr: unix.SYS_FCNTL, Name: "fcntl", If: []Arg{IsInt(1, unix.F_GET_SEALS)}},
		{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []Arg{IsInt(1, unix.TCGETS)}},
		{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []Arg{IsInt(1, unix.TIOCGWINSZ)}},
		{Nr: unix.SYS_SCHED_GETATTR, Name: "sched_getattr", If: []Arg{IsInt(0, 0)}},
		{Nr: unix.SYS_SCHED_SETATTR, Name: "sched_setattr", If: []Arg{IsInt(0, 0)}},
	})
	wide := uintptr(0x0123456789abcdef)
	return map[string][]Call{
		"nothing": nil,
		"runtime": GoRuntime(1),
		"serve":   serve,
		"wide": {
			{Nr: 0, Name: "a", If: []Arg{Is(5, wide)}},
			{Nr: 1, Name: "b", If: []Arg{Without(0, wide)}},
			{Nr: 2, Name: "c", If: []Arg{{3, 0xffffffff00000000, 0x8000000000000000}}},
			{Nr: 3, Name: "d", If: []Arg{{3, 0xffffffff00000000, 0}}},
			{Nr: 4, Name: "e", If: []Arg{{3, 0, 0}}},
			{Nr: 5, Name: "f", If: []Arg{{3, 0, 1}}},
			{Nr: 6, Name: "g", If: []Arg{{3, 0xff00, 0xff01}}},
			{Nr: 7, Name: "h", If: []Arg{{0, 0xff00, 1 << 40}}},
			{Nr: 8, Name: "i", If: []Arg{{0, wide, wide &^ 0xff}}},   // both halves, with a mask
			{Nr: 8, Name: "i", If: []Arg{Is(2, 1<<32), IsInt(0, 5)}}, // not in the arguments' order
		},
		"clone3 listed": {{Nr: unix.SYS_CLONE3, Name: "clone3"}},
		"clone3 in part": {{Nr: unix.SYS_CLONE3, Name: "clone3", If: []Arg{Is(1, 64)}},
			{Nr: unix.SYS_CLONE3, Name: "clone3", If: []Arg{Is(1, 72)}}},
		"with conditions and without": {{Nr: 9, Name: "x", If: []Arg{Is(0, 1)}}, {Nr: 9, Name: "x"},
			{Nr: 9, Name: "x", If: []Arg{Is(0, 2)}}},
	}
}

// Invariant: sandbox: In mode on, a confined process starts, connects and traces nothing, and opens
// files only for reading, with Landlock only those at listed paths.
func TestFilterIsThatOfTheList(t *testing.T) {
	for name, list := range lists() {
		for action, theirs := range map[uint32]seccomp.Action{actionNotify: seccomp.UserNotify,
			actionRefuse: seccomp.ReturnError.Code(uint16(unix.EPERM))} {
			want := testkit.Must(reference(list, theirs))(t)
			got := testkit.Must(program(list, action))(t)
			f := newFilters(t, want, got)
			count := f.everyNumber(t)
			f.everyArgument(t, list)
			t.Logf("%s: %d instructions, gVisor's has %d; %d calls, %#x", name, len(got), len(want), f.tried, count)
			if action == actionNotify && count[actionNotify] == 0 {
				t.Errorf("%s: nothing is refused", name)
			}
		}
	}
	for _, list := range [][]uintptr{nil, {unix.SYS_SENDMSG}, {unix.SYS_SENDMSG, unix.SYS_SECCOMP}} {
		f := newFilters(t, testkit.Must(referenceForbidding(list))(t), testkit.Must(forbidding(list))(t))
		testkit.Equal(t, "forbidden", f.everyNumber(t)[actionRefuse], len(list))
	}
}

func TestFilterOfAnyList(t *testing.T) {
	half := rapid.OneOf(rapid.SampledFrom([]uint64{0, 1, math.MaxUint32, 1 << 31}), rapid.Uint64Max(math.MaxUint32))
	number := rapid.Custom(func(t *rapid.T) uint64 { return half.Draw(t, "high")<<32 | half.Draw(t, "low") })
	call := rapid.Custom(func(t *rapid.T) Call {
		c := Call{Nr: uintptr(rapid.OneOf(rapid.IntRange(0, 600), rapid.Just(unix.SYS_CLONE3)).Draw(t, "nr")), Name: "x"}
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 6, rapid.ID).Draw(t, "arguments") {
			mask := number.Draw(t, "mask")
			value := number.Draw(t, "value")
			if rapid.IntRange(0, 9).Draw(t, "possible") > 0 {
				value &= mask
			}
			c.If = append(c.If, Arg{i, uintptr(mask), uintptr(value)})
		}
		return c
	})
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(call, 0, 100).Draw(t, "list")
		want, err := reference(list, seccomp.UserNotify)
		if err != nil {
			t.Fatal(err)
		}
		got, err := program(list, actionNotify)
		if err != nil {
			t.Fatal(err)
		}
		f := newFilters(t, want, got)
		for _, c := range list {
			d := data{nr: uint32(c.Nr), arch: auditArch}
			for i := range d.args {
				d.args[i] = number.Draw(t, "argument")
			}
			f.same(t, d)
			for _, a := range c.If {
				d.args[a.Index] = d.args[a.Index]&^uint64(a.Mask) | uint64(a.Value)
			}
			f.same(t, d)
			for _, a := range c.If { // one bit of one argument is different
				was := d.args[a.Index]
				d.args[a.Index] ^= 1 << rapid.IntRange(0, 63).Draw(t, "bit")
				f.same(t, d)
				d.args[a.Index] = was
			}
		}
		for range 20 {
			f.same(t, data{nr: uint32(rapid.IntRange(0, 700).Draw(t, "nr")), arch: auditArch})
		}
	})
}

// The filter allows a call that is listed without conditions by its number, and loads no argument for that: only then
// does the kernel not run the filter for it (seccomp_is_const_allow, Linux 5.11).
func TestListedCallIsAllowedByItsNumber(t *testing.T) {
	list := lists()["serve"]
	var raw []bpf.RawInstruction
	for _, in := range testkit.Must(program(list, actionNotify))(t) {
		raw = append(raw, bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K})
	}
	all, _ := bpf.Disassemble(raw)
	vm := testkit.Must(bpf.NewVM(all))(t)
	for _, c := range list {
		b := binary.BigEndian.AppendUint32(nil, uint32(c.Nr))
		b = append(binary.BigEndian.AppendUint32(b, auditArch), make([]byte, 8)...)
		// b has no arguments: a load of one ends the program, with 0
		n := testkit.Must(vm.Run(b))(t)
		if constant := uint32(n) == actionAllow; constant != (len(c.If) == 0) {
			t.Errorf("%s, with %d conditions: %#x", c.Name, len(c.If), n)
		}
	}
}

// A filter also works with a call whose code is longer than a conditional jump can skip (255 instructions).
func TestFilterOfManyConditions(t *testing.T) {
	var list []Call
	for i := range uintptr(150) {
		list = append(list, Call{Nr: 100, Name: "many", If: []Arg{Is(0, i), Is(1, 2*i)}}, Call{Nr: 50 + i, Name: "one",
			If: []Arg{IsInt(5, uint32(i))}})
	}
	got := testkit.Must(program(list, actionNotify))(t)
	f := newFilters(t, testkit.Must(reference(list, seccomp.UserNotify))(t), got)
	f.everyNumber(t)
	for i := range uint64(151) {
		for nr := range uint32(256) {
			f.same(t, data{nr: nr, arch: auditArch, args: [6]uint64{i, 2 * i, 0, 0, 0, i}})
		}
		testkit.Equal(t, fmt.Sprint("alternative ", i), f.same(t, data{nr: 100, arch: auditArch,
			args: [6]uint64{i, 2 * i}}) == actionAllow, i < 150)
	}
}

func TestImpossibleListsAreErrors(t *testing.T) {
	var long []Call
	for i := range uintptr(1000) {
		long = append(long, Call{Nr: i, Name: "x", If: []Arg{Is(0, i)}})
	}
	for want, list := range map[string][]Call{
		"x: no argument 6":                {{Nr: 1, Name: "x", If: []Arg{Is(6, 0)}}},
		"x: no argument -1":               {{Nr: 1, Name: "x", If: []Arg{Is(-1, 0)}}},
		"x: two conditions of argument 2": {{Nr: 1, Name: "x", If: []Arg{Is(2, 0), Without(2, 1)}}},
		"the kernel takes 4096":           long,
	} {
		if _, err := program(list, actionNotify); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
