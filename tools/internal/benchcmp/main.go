// Command benchcmp compares the benchmarks of two commits, or of a commit and the checkout. See the head of
// tools/benchcmp.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"vnic.dev/vnic/tools/internal/heirs"
)

const usage = `usage: tools/benchcmp [--base COMMIT] [--new COMMIT] [--pairs N] [--benchtime T] [--core N]
                      [--mapping FILE] [--keep DIR] [PACKAGE...]
       tools/benchcmp --results DIR
its head tells more`

// hot is the default list of packages to compare, by their names in the base.
var hot = []string{
	"dma", "virtq", "splitter", "wire", "control", "nic", "nic/virtio", "nic/gve", "driver", "stack", "stack/gateway",
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		fmt.Println(usage)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "benchcmp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, errs io.Writer) error {
	tools := os.Getenv("VNIC_TOOLS")
	var c comparison
	flags := flag.NewFlagSet("benchcmp", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.base, "base", "780d5150", "")
	flags.StringVar(&c.now, "new", "", "")
	flags.IntVar(&c.pairs, "pairs", 10, "")
	flags.StringVar(&c.benchtime, "benchtime", "100ms", "")
	flags.IntVar(&c.core, "core", -1, "")
	mapping := flags.String("mapping", filepath.Join(tools, "inventory", "heirs.txt"), "")
	keep := flags.String("keep", "", "")
	results := flags.String("results", "", "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	if *results != "" {
		if flags.NArg() > 0 {
			return errors.New(usage)
		}
		return judge(ctx, tools, *results, out)
	}
	if c.pairs < 1 {
		return fmt.Errorf("--pairs %d: at least 1", c.pairs)
	}
	var err error
	if c.rules, err = heirs.Read(*mapping); err != nil {
		return err
	}
	if c.core < 0 {
		if c.core, err = lastCore(); err != nil {
			return err
		}
	}
	if c.packages = flags.Args(); len(c.packages) == 0 {
		c.packages = hot
	}
	c.errs = errs
	temp, err := os.MkdirTemp("", "benchcmp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	c.temp = temp
	dir := cmp.Or(*keep, filepath.Join(temp, "results"))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := c.measure(ctx, dir); err != nil {
		return err
	}
	return judge(ctx, tools, dir, out)
}

// lastCore returns the last CPU that this process may run on.
func lastCore() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok { // such as 0-3,8
			list = strings.TrimSpace(list)
			return strconv.Atoi(list[strings.LastIndexAny(list, "-,")+1:])
		}
	}
	return 0, errors.New("/proc/self/status: no Cpus_allowed_list: give --core")
}
