package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/spare"
	"vnic.dev/vnic/internal/wire/uplink"
)

// bytesFlag is a number of bytes, as 4096, 64K, 256MiB, 4G or 1T, in powers of 1024 (lab.ParseBytes).
type bytesFlag uint64

func (b *bytesFlag) Type() string { return "bytes" }

func (b *bytesFlag) String() string { return lab.FormatBytes(uint64(*b)) }

func (b *bytesFlag) Set(s string) error {
	n, err := lab.ParseBytes(s)
	*b = bytesFlag(n)
	return err
}

// textFlag is a flag with functions that format and parse its value.
type textFlag struct {
	kind string // name of the value in help texts
	text func() string
	set  func(string) error
}

func (t textFlag) Type() string       { return t.kind }
func (t textFlag) String() string     { return t.text() }
func (t textFlag) Set(s string) error { return t.set(s) }

func impairFlags(f *pflag.FlagSet, im *lab.Impairment) {
	for _, x := range lab.Impairments() {
		if v := x.Value(im); x.Flag != "" {
			f.Var(textFlag{x.Flag, v.String, v.Set}, x.Key, x.Help+"; as "+x.Example)
		}
	}
}

func flowsFlag(f *pflag.FlagSet, n *int, shown string) {
	f.IntVar(n, "flows", lab.DefaultFlows, fmt.Sprintf("flows of which each NIC keeps account, who sent what to whom, up "+
		"to %d; the least used go to a row of others; 0: none; %s", lab.MaxFlows, shown))
}

func checkFlows(n int) error {
	if n < 0 || n > lab.MaxFlows {
		return fmt.Errorf("--flows %d: how many flows, 0 to %d", n, lab.MaxFlows)
	}
	return nil
}

// gatewayFlags adds --gateway, --host-ports, --deny and --allow. ports is the default of --host-ports, for the help.
func gatewayFlags(f *pflag.FlagSet, g *lab.GatewayFlags, ports string) {
	f.StringVar(&g.Gateway, "gateway", "",
		"nat, to this machine's network; isolated: the guests, their names and --forward; off: there is none (default nat)")
	f.StringVar(&g.HostPorts, "host-ports", "",
		"TCP and UDP ports of this machine that guests can reach, on loopback too: all, none, or a list as 80,8000-8010; a "+
			"port that vnic itself opens, as --http does, only alone or in a range of at most 100 (default "+ports+")")
	f.StringArrayVar(&g.Deny, "deny", nil,
		"address or network, as 10.0.0.0/8, that guests do not reach; once for each")
	f.StringArrayVar(&g.Allow, "allow", nil,
		"one that they do reach, as 169.254.169.254, of what --deny or vnic itself refuses: link-local addresses and "+
			"clouds' metadata; the longest network decides, --host-ports is for this machine's own")
}

// impairSeedFlag adds --seed, for impairments only.
func impairSeedFlag(f *pflag.FlagSet, i *lab.Impairment) {
	f.Uint64Var(&i.Seed, "seed", 0, "seed of what links do by chance (default: random, printed)")
}

func nicFlags(f *pflag.FlagSet, o *lab.NICOptions) {
	f.IntVar(&o.MTU, "mtu", 1500, "MTU of the link, which is also the largest that the NICs take, unless --max-mtu says "+
		"more")
	f.IntVar(&o.MaxMTU, "max-mtu", 0, "MTU to which a guest can raise its own with 'ip link set eth0 mtu N' (default: "+
		"--mtu); the kernel's drivers begin with the largest, vnic's guests and those that go by DHCP with --mtu")
	xdpFlag(f, &o.XDP)
	f.IntVar(&o.RSCUsecs, "rsc-usecs", 0,
		"microseconds for which frames of a TCP flow that a guest is to get may wait for more of it, and go to the guest as "+
			"one packet, where its driver takes those; a lab file says so for each NIC (default 0: only frames that come in "+
			"one batch are merged)")
}

func xdpFlag(f *pflag.FlagSet, xdp *bool) {
	f.BoolVar(xdp, "xdp", false, "have the kernel's virtio driver take native XDP programs: the NIC offloads nothing "+
		"for it to receive, so packets come one by one, and slower; without, native XDP is refused, and each generic "+
		"program gets a warning in the kernel's log; gve takes no such flag, and native XDP after, in the guest, "+
		lab.GVEBeforeXDP)
}

// uplinkFlag adds --uplink. It names the uplinks up0, up1 and so on.
func uplinkFlag(f *pflag.FlagSet, u *[]uplink.Config) {
	text := func() string {
		var words []string
		for i := range *u {
			words = append(words, (*u)[i].String())
		}
		return strings.Join(words, " ")
	}
	set := func(s string) error {
		c, err := uplink.Parse(s)
		if err == nil && len(*u) == lab.MaxUplinks {
			err = fmt.Errorf("there are %d, and no more", lab.MaxUplinks)
		}
		c.Name = fmt.Sprint("up", len(*u))
		*u = append(*u, c)
		return err
	}
	f.Var(textFlag{"uplink", text, set}, "uplink", "lead the switch to another machine: vxlan=LOCAL,REMOTE,VNI with "+
		"addresses and ports, tap=NAME of a device that is there, stream=listen:ADDRESS or stream=connect:ADDRESS, a file "+
		"with a slash or HOST:PORT, as QEMU's -netdev stream; once for each")
}

// allowMACFlag adds --allow-mac; ownRule describes its default.
func allowMACFlag(f *pflag.FlagSet, m *lab.AllowedMACs, ownRule string) {
	set := func(s string) (err error) { *m, err = lab.ParseAllowedMACs(s); return err }
	f.Var(textFlag{"MACs", func() string { return m.String() }, set}, "allow-mac", "other MACs that guests may send "+
		"from, with commas, or any, as for a bridge or macvlan in a guest; never the gateway's or another guest's (default: "+
		ownRule+")")
}

func stormFlag(f *pflag.FlagSet, storm *uint) {
	f.UintVar(storm, "storm", lab.DefaultStorm, "broadcast and multicast `frames` a second that a guest may send, and "+
		"that may come in by an uplink; what is beyond is dropped, and counted as storm. 5000 full frames are a "+
		"multicast stream of 60 Mb/s: give more for a faster one (0: no limit)")
}

func timeoutFlag(f *pflag.FlagSet, limit *time.Duration) {
	set := func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return errors.New("a time with its unit, as 90s or 10m, or 0: no limit")
		}
		*limit = d
		return nil
	}
	f.Var(textFlag{"duration", func() string { return limit.String() }, set}, "timeout", "end everything after this "+
		"time, as 90s or 10m, counted from the start, downloads included: exit status 124, and a message says which guests "+
		"still ran (default 0: no limit)")
}

func sandboxFlag(f *pflag.FlagSet, mode *string) {
	f.StringVar(mode, "sandbox", *mode,
		"on: once guests may come, this process can start, open and dial nothing, a small one outside of it does; "+
			"log: say what would be refused; off")
}

// spareKey is an annotation of the flag --accel in commands that start guests.
const spareKey = "spare"

// machineFlags adds --accel, with the annotation spareKey, and --slow to a command that starts guests.
func machineFlags(f *pflag.FlagSet, a *qemu.Accel) {
	accelerated(f, a)
	_ = f.SetAnnotation("accel", spareKey, nil)
}

// accelerated adds --accel and --slow. It sets *a to the environment variable of --accel, if that has a valid value.
// In a spare process (package spare) *a is always TCG.
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

// checkMachineEnv checks the environment variables of --accel and --slow.
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

// beginMachine runs before each command. It checks the environment, and starts a spare process (package spare) if
// the command starts guests with --accel auto and this process can open /dev/kvm.
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
	if err := spare.Keep(); err != nil { // without a spare, a job that KVM stops is not repeated
		_, err = fmt.Fprintf(c.ErrOrStderr(), "note: %v\n", err)
		return err
	}
	return nil
}
