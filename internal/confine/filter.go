package confine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// ErrNoListener says that refused system calls cannot be told of to anybody: the kernel is older
// than 5.7, or this process runs under somebody's listener already. They fail nevertheless.
var ErrNoListener = errors.New("refused system calls are not counted: the kernel has no listener for them")

// program builds the filter. What is not listed gets the default action.
func program(list []Call, otherwise seccomp.Action) ([]bpf.Instruction, error) {
	rules := seccomp.NewSyscallRules()
	for _, c := range list {
		if len(c.If) == 0 {
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
			if a.Index < 0 || a.Index > 5 {
				return nil, fmt.Errorf("%s: no argument %d", c.Name, a.Index)
			}
			if _, free := args[a.Index].(seccomp.AnyValue); !free {
				return nil, fmt.Errorf("%s: two conditions of argument %d", c.Name, a.Index)
			}
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

// Calls leaves the process no system calls but these, on all threads and for ever. The listener is
// to be handed to another process, whose Watch answers, and closed here; until then each thread
// that makes a refused call waits. An error that is ErrNoListener comes with a filter that holds
// nevertheless. trial: nothing may be refused, so without a listener there is no filter.
func Calls(list []Call, trial bool) (listener *os.File, err error) {
	p, err := program(list, seccomp.UserNotify)
	if err != nil {
		return nil, err
	}
	const all = linux.SECCOMP_FILTER_FLAG_TSYNC | linux.SECCOMP_FILTER_FLAG_NEW_LISTENER | flagTSyncESRCH
	// A thread that a signal interrupts while it waits would else make its call, and have it
	// counted, again.
	fd, err := setFilter(p, all|flagWaitKillable)
	if errors.Is(err, unix.EINVAL) { // older than 5.19
		fd, err = setFilter(p, all)
	}
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), "seccomp listener"), nil
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("seccomp: %w", err)
	case trial:
		return nil, ErrNoListener
	}
	if p, err = program(list, seccomp.ReturnError.Code(uint16(unix.EPERM))); err == nil {
		err = seccomp.SetFilter(p)
	}
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	return nil, ErrNoListener
}

// Forbid takes system calls away from all threads that Calls has left: what was needed to hand the
// listener over. They fail with EPERM and are not counted. seccomp(2) and prctl(PR_SET_NO_NEW_PRIVS)
// have to be left until then.
func Forbid(list ...uintptr) error {
	rules := seccomp.NewSyscallRules()
	for _, nr := range list {
		rules.Set(nr, seccomp.MatchAll{})
	}
	p := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: rules, Action: seccomp.ReturnError.Code(uint16(unix.EPERM))}},
		Options:  seccomp.ProgramOptions{DefaultAction: seccomp.Allow, BadArchAction: seccomp.Allow},
	}
	instructions, _, err := p.Build()
	if err == nil {
		err = seccomp.SetFilter(instructions)
	}
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}
