package bench

// All are the measurements, in the order of the table.
func All() (list []Measurement) {
	list = append(list, memcpy("memcpy-hot", "copies of 64 KiB in cache", hotLen),
		memcpy("memcpy-cold", "copies of 64 KiB through 128 MiB", coldLen))
	for _, size := range []int{64, 512, 1514, 9014, 64 << 10} {
		list = append(list, ringAndWorker(size)...)
	}
	return list
}
