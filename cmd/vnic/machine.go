package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/cmd/vnic/internal/spare"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/qemu"
)

// spareKey annotates the flag of commands that start guests.
const spareKey = "spare"

// machineFlags say how a command's guests run, and how slow that may be.
func machineFlags(f *pflag.FlagSet, a *qemu.Accel) {
	accelerated(f, a)
	_ = f.SetAnnotation("accel", spareKey, nil) // the flag is there
}

// accelerated are the same for guests that somebody else starts.
func accelerated(f *pflag.FlagSet, a *qemu.Accel) {
	if v, err := qemu.ParseAccel(os.Getenv(qemu.EnvAccel)); err == nil {
		*a = v
	}
	if spare.Taken() {
		*a = qemu.AccelTCG
	}
	text := func() string { return cmp.Or(string(*a), "auto") }
	set := func(s string) error {
		v, err := qemu.ParseAccel(s)
		if err != nil {
			return errors.New("auto, kvm or tcg")
		}
		if !spare.Taken() {
			*a = v
		}
		return nil
	}
	f.Var(textFlag{"how", text, set}, "accel", "how QEMU runs the guests: kvm; tcg, which emulates their CPUs; or auto: "+
		"by KVM where a small guest boots with it ($"+qemu.EnvAccel+")")
	slow := func(s string) error {
		n, err := limits.Parse(s)
		if err == nil {
			limits.Stretch(n)
		}
		return err
	}
	f.Var(textFlag{"times", func() string { return "1" }, slow}, "slow", "how many times longer than usual everything "+
		"that is waited for may take, 1 to "+strconv.Itoa(limits.Max)+"; more where guests boot slowly ($"+limits.Env+")")
}

// checkMachineEnv says what is wrong with the environment's variables of machineFlags.
func checkMachineEnv(c *cobra.Command) error {
	if v := os.Getenv(qemu.EnvAccel); v != "" {
		if _, err := qemu.ParseAccel(v); err != nil {
			return misuse(c, fmt.Errorf("$%s %w", qemu.EnvAccel, err))
		}
	}
	if err := limits.Check(); err != nil {
		return misuse(c, err)
	}
	return nil
}

// beginMachine is done before every command: what the environment has is checked, and where guests may be run by KVM a
// spare is kept.
func beginMachine(c *cobra.Command) error {
	if err := checkMachineEnv(c); err != nil {
		return err
	}
	f := c.Flags().Lookup("accel")
	if f == nil || f.Value.String() != "auto" {
		return nil
	}
	if _, starts := f.Annotations[spareKey]; !starts {
		return nil
	}
	if err := spare.Keep(); err != nil { // nothing is begun again then
		_, err = fmt.Fprintf(c.ErrOrStderr(), "note: %v\n", err)
		return err
	}
	return nil
}
