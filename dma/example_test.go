package dma_test

import (
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// A worker copies bytes of one guest into GPU memory that another guest maps.
func Example() {
	files := dma.NewFiles()
	ram, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	must(err)
	defer unix.Close(ram)
	vram, err := unix.MemfdCreate("vram", unix.MFD_CLOEXEC)
	must(err)
	defer unix.Close(vram)
	for _, fd := range []int{ram, vram} {
		must(unix.Ftruncate(fd, 1<<20))
	}
	gpu, err := files.Open(vram, 1<<20)
	must(err)
	defer gpu.Close()
	gpu.SetGPU(0)
	must(gpu.Register(0, 64<<10))

	sender, receiver := dma.NewSpace("sender", files), dma.NewSpace("receiver", files)
	defer sender.Close()
	defer receiver.Close()
	must(sender.Add(dma.Map{IOVA: 0x1000, Size: 1 << 20, FD: ram}))
	must(receiver.Add(dma.Map{IOVA: 0x80000000, Size: 1 << 20, FD: vram}))

	worker := dma.NewCopier()
	counts := worker.Counts()
	done := make(chan error)
	dma.Go(func() { // here a fault of a truncated file is an error of Copy, and does not end the process
		defer sender.Leave(sender.Enter())
		defer receiver.Leave(receiver.Enter())
		src, err := sender.Translate(nil, 0x2000, 1448, dma.Read)
		if err != nil {
			done <- err
			return
		}
		dst, err := receiver.Translate(nil, 0x80000000, 4096, dma.Write)
		if err != nil {
			done <- err
			return
		}
		_, err = worker.Copy(dst, src)
		done <- err
	})
	must(<-done)
	fmt.Println("to GPU 0:", counts.Bytes(dma.Host, dma.GPU, 0))
	fmt.Println("to host memory:", counts.Total(dma.Host, dma.Host))
	// Output:
	// to GPU 0: 1448
	// to host memory: 0
}

// must ends the program if there is an error.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
