package control

// Buffer is a registered range of a GPU's memory, in whole 4 KiB pages.
type Buffer struct {
	ID   uint32 // offset 0: chosen by the NIC, from 1
	GPU  uint16 // 4
	_    uint16
	Off  uint64 // 8
	Size uint64 // 16
}

func (f Buffer) number() uint32 { return f.ID }

// MaxBindQueues bounds the numbers of receive queues that can be bound: 0 to MaxBindQueues-1.
const MaxBindQueues = 256

// Binding binds receive queues, or transmission, to a buffer.
type Binding struct {
	ID     uint32   // offset 0: chosen by the NIC, from 1
	Buffer uint32   // 4
	Tx     bool     // 8: 0 or 1
	Queues []uint16 // 16: receive queues, as a bit map, ascending when decoded; none if Tx
}

func (n Binding) number() uint32 { return n.ID }

type binding struct {
	ID, Buffer uint32
	Tx         bool
	_          [7]byte
	Queues     [MaxBindQueues / 8]byte
}

func (n Binding) append(b []byte) ([]byte, error) {
	w := binding{ID: n.ID, Buffer: n.Buffer, Tx: n.Tx}
	for _, q := range n.Queues {
		if q >= MaxBindQueues {
			return nil, badData("queue %d: not below %d", q, MaxBindQueues)
		}
		w.Queues[q/8] |= 1 << (q % 8)
	}
	return encode(b, w)
}

func (n *Binding) decode(data []byte) (int, error) {
	var w binding
	size, err := decodeFixed(data, &w)
	*n = Binding{ID: w.ID, Buffer: w.Buffer, Tx: w.Tx}
	for q := range uint16(MaxBindQueues) {
		if w.Queues[q/8]&(1<<(q%8)) != 0 {
			n.Queues = append(n.Queues, q)
		}
	}
	return size, err
}
