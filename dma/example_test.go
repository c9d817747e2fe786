package dma_test

import (
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// A worker moves bytes of one guest into GPU memory that another guest maps; the counter says that they went to a
// registered buffer.
func Example() {
	files := dma.NewFiles()
	ram, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		log.Fatal(err)
	}
	defer unix.Close(ram)
	vram, err := unix.MemfdCreate("vram", unix.MFD_CLOEXEC)
	if err != nil {
		log.Fatal(err)
	}
	defer unix.Close(vram)
	for _, fd := range []int{ram, vram} {
		if err := unix.Ftruncate(fd, 1<<20); err != nil {
			log.Fatal(err)
		}
	}
	gpu, err := files.Open(vram, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()
	gpu.SetGPU(0)
	if err := gpu.Register(0, 64<<10); err != nil {
		log.Fatal(err)
	}

	sender, receiver := dma.NewSpace("sender", files), dma.NewSpace("receiver", files)
	defer sender.Close()
	defer receiver.Close()
	if err := sender.Add(dma.Map{IOVA: 0x1000, Size: 1 << 20, FD: ram}); err != nil {
		log.Fatal(err)
	}
	if err := receiver.Add(dma.Map{IOVA: 0x80000000, Size: 1 << 20, FD: vram}); err != nil {
		log.Fatal(err)
	}

	worker := dma.NewCopier()
	done := make(chan error)
	dma.Go(func() { // a truncated file is an error here, not the end of the process
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
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	fmt.Println("to GPU 0:", worker.Counts().Bytes(dma.Host, dma.GPU, 0))
	fmt.Println("to host memory:", worker.Counts().Total(dma.Host, dma.Host))
	// Output:
	// to GPU 0: 1448
	// to host memory: 0
}
