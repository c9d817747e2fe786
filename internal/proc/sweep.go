package proc

import (
	"os"
	"os/exec"
	"syscall"
)

// Sweep has a directory removed when this process ends, however it does: a fetch that is killed
// leaves nothing. It gives the function that removes it now.
//
// A shell waits for the end of its input, which we hold open. It is in a process group of its own,
// so that what ends ours does not end it. What we started may still be about to end, and to write:
// it tries more than once.
func Sweep(dir string) (now func()) {
	const script = `read -r _; for i in 1 2 3 4 5 6 7 8; do rm -rf -- "$1" && [ ! -e "$1" ] && exit; sleep 0.2; done ` +
		`2>/dev/null`
	cmd := exec.Command("/bin/sh", "-c", script, "sh", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil { // the next fetch removes it (cache.clean)
		return func() { _ = os.RemoveAll(dir) }
	}
	return func() {
		_ = os.RemoveAll(dir)
		_ = in.Close()
		_ = cmd.Wait()
	}
}
