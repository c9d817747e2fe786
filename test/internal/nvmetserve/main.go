// Command nvmetserve is a program for a stock guest: it sets up the guest's kernel, by configfs,
// as an NVMe/TCP target (nvmet), whose namespaces are files of the guest. It prints a line when the target listens.
//
//	nvmetserve NQN ADDR:PORT FOLDER FILE...
//
// ADDR is an IPv4 address. FOLDER has the kernel modules that nvmet needs; their order does not matter.
package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nvmetserve:", err)
		os.Exit(1)
	}
	_ = unix.Pause()
}

func load(folder string) error {
	left, err := filepath.Glob(filepath.Join(folder, "*.ko*"))
	for len(left) > 0 && err == nil {
		var again []string
		for _, name := range left {
			if e := insert(name); e != nil && !errors.Is(e, unix.EEXIST) {
				again, err = append(again, name), fmt.Errorf("%s: %w", name, e)
			}
		}
		if len(again) < len(left) {
			err = nil // modules that failed may load in the next round
		}
		left = again
	}
	return err
}

func insert(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	flags := 0
	if filepath.Ext(name) != ".ko" {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	return errors.Join(unix.FinitModule(int(f.Fd()), "", flags), f.Close())
}

// setting is a file of configfs to write, or, with value "", a folder to make.
type setting struct{ path, value string }

func serve(args []string) error {
	if len(args) < 4 {
		return errors.New("arguments are NQN ADDR:PORT FOLDER FILE, and more files")
	}
	addr, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	if err := load(args[2]); err != nil {
		return err
	}
	if err := unix.Mount("configfs", "/sys/kernel/config", "configfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("configfs: %w", err)
	}
	const nvmet = "/sys/kernel/config/nvmet"
	subsystem, port := nvmet+"/subsystems/"+args[0], nvmet+"/ports/1"
	list := []setting{{subsystem, ""}, {subsystem + "/attr_allow_any_host", "1"}}
	for i, file := range args[3:] {
		ns := subsystem + "/namespaces/" + strconv.Itoa(i+1)
		list = append(list, setting{ns, ""}, setting{ns + "/device_path", file}, setting{ns + "/buffered_io", "1"},
			setting{ns + "/enable", "1"})
	}
	list = append(list, setting{port, ""}, setting{port + "/addr_trtype", "tcp"}, setting{port + "/addr_adrfam", "ipv4"},
		setting{port + "/addr_traddr", addr.Addr().String()}, setting{port + "/addr_trsvcid", strconv.Itoa(int(addr.Port()))})
	for _, s := range list {
		if s.value == "" {
			err = os.Mkdir(s.path, 0o755)
		} else {
			err = os.WriteFile(s.path, []byte(s.value), 0o600)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", s.value, err)
		}
	}
	if err := os.Symlink(subsystem, port+"/subsystems/"+args[0]); err != nil {
		return err
	}
	fmt.Printf("%s listens at %v\n", args[0], addr)
	return nil
}
