package boltkv

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"io"
	"math/bits"
	"os"
	"slices"

	"github.com/juju/errors"
)

// The format of bbolt's files, version 2. Numbers are in the byte order of the machine.
//
// A file is an array of pages. Pages 0 and 1 are meta pages. The valid one with the higher
// transaction ID names the root bucket and the number of pages in use. Page header: ID (8
// bytes), type (2), number of elements (2), number of overflow pages (4). The elements come
// next, followed by their keys and values; an element holds their position relative to itself.
const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2

	metaSize    = 64 // magic 4, version 4, page size 4, flags 4, root 8, sequence 8, freelist 8, pages 8, transaction 8, checksum 8
	metaSummed  = 56
	headerSize  = 16
	elementSize = 16 // branch: position 4, key size 4, page 8; leaf: flags 4, position 4, key size 4, value size 4
	bucketSize  = 16 // root page 8 or 0, sequence 8; the page itself follows if the root is 0

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01

	noFreelist = ^uint64(0)

	minPageSize = 1 << 10
	maxPageSize = 1 << 24
)

// order is the byte order of the file.
var order = binary.NativeEndian

// meta is the content of a valid meta page.
type meta struct {
	pageSize    int64
	root        uint64
	freelist    uint64
	pages       uint64
	transaction uint64

	// at is the offset of the meta page.
	at int64
}

// size returns how many bytes of the file are in use.
func (m meta) size() int64 { return int64(m.pages) * m.pageSize }

// readMeta returns the current meta page. It returns an error if neither is valid, or if the
// file is shorter than the page says. It retries once after a read error: each snapshot begins
// with this read, and bbolt, which reads through a mapping, would not notice the error.
func readMeta(file *os.File) (meta, error) {
	m, err := readMetaOnce(file)
	if err != nil && !errors.Is(err, errMalformed) {
		return readMetaOnce(file)
	}
	return m, err
}

func readMetaOnce(file *os.File) (meta, error) {
	found, err := newestMeta(file)
	if err != nil {
		return meta{}, errors.Trace(err)
	}
	// A transaction grows the file before it writes its meta page.
	info, err := file.Stat()
	switch {
	case err != nil:
		return meta{}, errors.Trace(err)
	case info.Size() == 0:
		return meta{}, malformed("it is empty")
	case found.pageSize == 0:
		return meta{}, malformed("neither meta page is valid")
	case found.root < 2 || found.root >= found.pages || found.pages > uint64(info.Size()/found.pageSize):
		return meta{}, malformed("%d pages of %d bytes are in use, but the file has %d bytes",
			found.pages, found.pageSize, info.Size())
	}
	return found, nil
}

// newestMeta returns the valid meta page with the higher transaction ID, or the zero value.
// The first page gives the page size, and so the offset of the second; if the first is not
// valid, newestMeta tries all page sizes.
func newestMeta(file *os.File) (meta, error) {
	first, err := metaAt(file, 0)
	if err != nil {
		return meta{}, err
	}
	from, to := int64(minPageSize), int64(maxPageSize)
	if first.pageSize != 0 {
		from, to = first.pageSize, first.pageSize
	}
	for at := from; at <= to; at *= 2 {
		second, err := metaAt(file, at)
		if err != nil {
			return meta{}, err
		}
		if second.pageSize == at && (first.pageSize == 0 || second.transaction > first.transaction) {
			return second, nil
		}
	}
	return first, nil
}

// metaAt returns the content of the meta page at the offset, or the zero value if it is not
// valid.
func metaAt(file *os.File, offset int64) (meta, error) {
	var page [headerSize + metaSize]byte
	if _, err := file.ReadAt(page[:], offset); errors.Is(err, io.EOF) {
		return meta{}, nil
	} else if err != nil {
		return meta{}, errors.Trace(err)
	}
	data := page[headerSize:]
	sum := fnv.New64a()
	sum.Write(data[:metaSummed])
	pageSize := order.Uint32(data[8:])
	if order.Uint32(data) != metaMagic || order.Uint32(data[4:]) != metaVersion ||
		order.Uint64(data[metaSummed:]) != sum.Sum64() ||
		bits.OnesCount32(pageSize) != 1 || pageSize < minPageSize || pageSize > maxPageSize {
		return meta{}, nil
	}
	return meta{
		pageSize:    int64(pageSize),
		root:        order.Uint64(data[16:]),
		freelist:    order.Uint64(data[32:]),
		pages:       order.Uint64(data[40:]),
		transaction: order.Uint64(data[48:]),
		at:          offset,
	}, nil
}

// errMalformed is the type of errors about a damaged file, as opposed to a file that cannot be
// read.
const errMalformed = errors.ConstError("malformed")

func malformed(format string, args ...any) error {
	return errors.WithType(errors.Errorf(format, args...), errMalformed)
}

// checkStructure returns an error unless every page that can be reached from the newest meta
// page is well-formed, so that bbolt can read the file without leaving it. It does not look at
// the contents of values.
func checkStructure(file *os.File) error {
	m, err := readMeta(file)
	if err != nil {
		return err
	}
	c := &checker{file: file, meta: m, used: make([]bool, m.pages)}
	c.used[0], c.used[1] = true, true
	if err := c.checkTree(m.root, c.checkBuckets); err != nil {
		return err
	}
	if !c.foundBucket {
		return malformed("the bucket %q is missing", bucket)
	}
	return c.checkFreelist()
}

// checker walks the pages of a file.
type checker struct {
	file *os.File
	meta meta

	// used marks the pages that belong to something.
	used []bool

	// foundBucket says that the bucket that holds all keys exists.
	foundBucket bool

	// pages are buffers, one for each level of the tree that is being walked.
	pages [][]byte
}

// leafCheck checks the elements of a leaf page beyond what applies to all leaf pages.
type leafCheck func(leaf page) error

// checkTree checks the tree with the given root page.
func (c *checker) checkTree(root uint64, leaf leafCheck) error {
	return c.checkSubtree(root, 0, nil, nil, leaf)
}

// checkSubtree checks the page and its descendants. If low is not nil, it must be the first
// key; if high is not nil, all keys must be less than high.
func (c *checker) checkSubtree(id uint64, level int, low, high []byte, leaf leafCheck) error {
	p, err := c.readPage(id, level)
	if err != nil {
		return err
	}
	switch p.kind() {
	case leafPage:
		if err := p.checkKeys(low, high); err != nil {
			return errors.Annotatef(err, "page %d", id)
		}
		return errors.Annotatef(leaf(p), "page %d", id)
	case branchPage:
		if p.count() == 0 {
			return malformed("page %d has no children", id)
		}
		if err := p.checkKeys(low, high); err != nil {
			return errors.Annotatef(err, "page %d", id)
		}
		for i := range p.count() {
			next := high
			if i+1 < p.count() {
				next = p.key(i + 1)
			}
			if err := c.checkSubtree(p.child(i), level+1, p.key(i), next, leaf); err != nil {
				return err
			}
		}
		return nil
	default:
		return malformed("page %d has the type %#x", id, p.kind())
	}
}

// readPage reads the page with its overflow pages into the buffer of the level.
func (c *checker) readPage(id uint64, level int) (page, error) {
	if level == len(c.pages) {
		c.pages = append(c.pages, make([]byte, c.meta.pageSize))
	}
	if err := c.markUsed(id); err != nil {
		return nil, err
	}
	data := c.pages[level][:c.meta.pageSize]
	at := int64(id) * c.meta.pageSize
	if _, err := c.file.ReadAt(data, at); err != nil {
		return nil, errors.Annotatef(err, "reading page %d", id)
	}
	p := page(data)
	if p.id() != id {
		return nil, malformed("page %d has the ID of page %d", id, p.id())
	}
	more := uint64(p.overflow())
	if more == 0 {
		return p, nil
	}
	if id+more >= c.meta.pages {
		return nil, malformed("page %d continues beyond the end", id)
	}
	for next := id + 1; next <= id+more; next++ {
		if err := c.markUsed(next); err != nil {
			return nil, err
		}
	}
	data = slices.Grow(data, int(more)*int(c.meta.pageSize))[:int64(1+more)*c.meta.pageSize]
	if _, err := c.file.ReadAt(data[c.meta.pageSize:], at+c.meta.pageSize); err != nil {
		return nil, errors.Annotatef(err, "reading page %d", id)
	}
	c.pages[level] = data
	return data, nil
}

// markUsed records that the page belongs to something.
func (c *checker) markUsed(id uint64) error {
	switch {
	case id >= c.meta.pages:
		return malformed("page %d is beyond the end", id)
	case c.used[id]:
		return malformed("page %d is used twice", id)
	}
	c.used[id] = true
	return nil
}

// checkBuckets checks a leaf page of the root bucket, whose values are buckets.
func (c *checker) checkBuckets(leaf page) error {
	for i := range leaf.count() {
		value := leaf.value(i)
		if leaf.flags(i) != bucketFlag || len(value) < bucketSize {
			return malformed("element %d is not a bucket", i)
		}
		c.foundBucket = c.foundBucket || bytes.Equal(leaf.key(i), bucket)
		if root := order.Uint64(value); root != 0 {
			// The buffers of this tree are in use.
			nested := &checker{file: c.file, meta: c.meta, used: c.used}
			if err := nested.checkTree(root, checkNoBuckets); err != nil {
				return errors.Annotatef(err, "bucket %q", leaf.key(i))
			}
			continue
		}
		inline := page(value[bucketSize:])
		if len(inline) < headerSize || inline.kind() != leafPage {
			return malformed("bucket %q has no page", leaf.key(i))
		}
		if err := inline.checkKeys(nil, nil); err != nil {
			return errors.Annotatef(err, "bucket %q", leaf.key(i))
		}
		if err := checkNoBuckets(inline); err != nil {
			return errors.Annotatef(err, "bucket %q", leaf.key(i))
		}
	}
	return nil
}

// checkNoBuckets checks a leaf page of a bucket that contains no buckets.
func checkNoBuckets(leaf page) error {
	for i := range leaf.count() {
		if flags := leaf.flags(i); flags != 0 {
			return malformed("element %d has the flags %#x", i, flags)
		}
	}
	return nil
}

// checkFreelist checks the list of free pages, if the file has one: other programs write it.
func (c *checker) checkFreelist() error {
	if c.meta.freelist == noFreelist {
		return nil
	}
	p, err := c.readPage(c.meta.freelist, 0)
	if err != nil {
		return errors.Annotate(err, "free pages")
	}
	if p.kind() != freelistPage {
		return malformed("page %d does not list free pages", p.id())
	}
	// If the count does not fit in the header, it is the first entry of the list.
	ids, count := p[headerSize:], uint64(p.count())
	if count == 0xFFFF {
		count, ids = order.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return malformed("page %d lists %d free pages, more than fit in it", p.id(), count)
	}
	for i := range count {
		if err := c.markUsed(order.Uint64(ids[8*i:])); err != nil {
			return errors.Annotate(err, "free pages")
		}
	}
	return nil
}

// page is a page with its overflow pages, or a page within a value.
type page []byte

func (p page) id() uint64       { return order.Uint64(p) }
func (p page) kind() uint16     { return order.Uint16(p[8:]) }
func (p page) count() int       { return int(order.Uint16(p[10:])) }
func (p page) overflow() uint32 { return order.Uint32(p[12:]) }

// element returns the rest of the page from element i.
func (p page) element(i int) []byte { return p[headerSize+i*elementSize:] }

func (p page) flags(i int) uint32 { return order.Uint32(p.element(i)) }
func (p page) child(i int) uint64 { return order.Uint64(p.element(i)[8:]) }

// offsets returns the position of element i's key, relative to the element, the key's length,
// and the length of the value that follows.
func (p page) offsets(i int) (position, key, value uint64) {
	e := p.element(i)
	if p.kind() == branchPage {
		return uint64(order.Uint32(e)), uint64(order.Uint32(e[4:])), 0
	}
	return uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
}

func (p page) key(i int) []byte {
	position, key, _ := p.offsets(i)
	return p.element(i)[position:][:key]
}

func (p page) value(i int) []byte {
	position, key, value := p.offsets(i)
	return p.element(i)[position+key:][:value]
}

// checkKeys returns an error unless keys and values follow the elements without a gap, as
// bbolt writes them, lie within the page, ascend, and are less than high. The first key must
// be low, the key in the parent page, because bbolt would change an element of the parent by
// it. low or high may be nil, which lifts its condition.
func (p page) checkKeys(low, high []byte) error {
	next := uint64(headerSize + p.count()*elementSize)
	if next > uint64(len(p)) {
		return malformed("%d elements do not fit", p.count())
	}
	var before []byte
	for i := range p.count() {
		position, length, value := p.offsets(i)
		if at := headerSize + uint64(i*elementSize) + position; at != next || length == 0 {
			return malformed("element %d has a wrong position or an empty key", i)
		}
		next += length + value
		if next > uint64(len(p)) {
			return malformed("element %d is not within the page", i)
		}
		key := p.key(i)
		if i == 0 && low != nil && !bytes.Equal(key, low) {
			return malformed("the first key differs from the key in the parent page")
		}
		if i > 0 && bytes.Compare(key, before) <= 0 {
			return malformed("element %d is out of order", i)
		}
		before = key
	}
	if high != nil && before != nil && bytes.Compare(before, high) >= 0 {
		return malformed("the last element is out of order")
	}
	return nil
}
