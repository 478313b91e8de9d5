package program

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
)

// The package documentation describes the members of these objects and the operations to which
// they apply.

type request struct {
	Term      uint64     `json:"term,omitempty"`
	Arguments []argument `json:"arguments"`
}

type argument struct {
	Volume     string            `json:"volume,omitempty"`
	VolumeID   string            `json:"volume-id,omitempty"`
	SizeMiB    uint64            `json:"size-mib,omitempty"`
	Attributes map[string]any    `json:"attributes,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
	Machine    string            `json:"machine,omitempty"`
	InstanceID string            `json:"instance-id,omitempty"`
	ReadOnly   bool              `json:"read-only,omitempty"`
	Node       *node             `json:"node,omitempty"`
}

// node is the machine as what places workloads knows it.
type node struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
}

type answer struct {
	Results       []result `json:"results"`
	MachinesKnown bool     `json:"machines-known"`
}

type result struct {
	Error      *failure    `json:"error"`
	VolumeID   string      `json:"volume-id"`
	SizeMiB    uint64      `json:"size-mib"`
	HardwareID string      `json:"hardware-id"`
	WWN        string      `json:"wwn"`
	Persistent bool        `json:"persistent"`
	New        bool        `json:"new"`
	Attachment *attachment `json:"attachment"`

	Tags     map[string]string `json:"tags"`
	Attached bool              `json:"attached"`
	Machine  string            `json:"machine"`
}

type attachment struct {
	DeviceName string `json:"device-name"`
	DeviceLink string `json:"device-link"`
	BusAddress string `json:"bus-address"`
	ReadOnly   bool   `json:"read-only"`
	Plan       *plan  `json:"plan"`
}

type plan struct {
	DeviceType storage.DeviceType `json:"device-type"`
	Attributes map[string]string  `json:"attributes"`
}

type failure struct {
	Message string `json:"message"`
	Code    string `json:"code"`
}

// decode decodes an answer. An unknown member is an error: it is probably misspelt. The error
// does not contain the content of the answer, which may be secret.
func decode(data []byte) (answer, error) {
	if !utf8.Valid(data) {
		return answer{}, errors.New("it is not text in UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var a answer
	if err := decoder.Decode(&a); err == io.EOF {
		return answer{}, errors.New("it wrote nothing")
	} else if err != nil {
		return answer{}, errors.New(run.Printable(err.Error()))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return answer{}, errors.New("it wrote more than one JSON object")
	}
	return a, nil
}

// maxMessage limits the stored length of an error's message, maxID that of an ID, and maxTag
// that of a tag's value, in bytes.
const maxMessage, maxID, maxTag = 1024, 255, 4096

// maxSize is the maximum size of a file or device on Linux, in MiB: offsets have 63 bits.
const maxSize = 1<<43 - 1

// err returns the error of one item, or nil if the item succeeded.
func (f *failure) err() error {
	if f == nil {
		return nil
	}
	text := run.Printable(f.Message)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	if text == "" {
		text = "the program gives no reason"
	}
	switch f.Code {
	case "":
		return errors.New(text)
	case "nothing-made":
		return storage.NothingMade(errors.New(text))
	case "refused":
		return storage.Refused(errors.New(text))
	case "incomplete":
		return storage.Incomplete(errors.New(text))
	case "in-progress":
		return storage.InProgress(errors.New(text))
	case "permanent":
		return storage.Permanent(errors.New(text))
	case "not-valid":
		return errors.NewNotValid(nil, text)
	case "not-supported":
		return errors.NewNotSupported(nil, text)
	case "not-found":
		return errors.NewNotFound(nil, text)
	case "ignored":
		return storage.Ignored(errors.New(text))
	}
	return errors.Errorf("%s (the program's code %q is unknown)", text, run.Printable(f.Code[:min(len(f.Code), maxID)]))
}

// owned returns the volume in a result of list-volumes, with its owner if the program reports
// tags.
func (r result) owned() (storage.OwnedObject, error) {
	info, err := r.info()
	if err != nil {
		return storage.OwnedObject{}, err
	}
	for name, value := range r.Tags {
		if err := checkText("tag", name); err != nil {
			return storage.OwnedObject{}, err
		}
		if err := checkPrintable("tag "+name, value, maxTag); err != nil {
			return storage.OwnedObject{}, err
		}
	}
	return storage.OwnedObject{ID: info.VolumeId, Size: info.Size, ResourceTags: r.Tags, Attached: r.Attached}, nil
}

// holder returns the attachment in a result of list-volumes, or nil if no machine has the volume.
func (r result) holder() (*storage.ListedAttachment, error) {
	if r.Machine == "" {
		if r.Attached {
			return nil, errors.Errorf("the program gave volume %s without the machine that it is attached to", r.VolumeID)
		}
		return nil, nil
	}
	if err := checkText("machine", r.Machine); err != nil {
		return nil, err
	}
	machine, err := names.ParseTag(r.Machine)
	if err != nil {
		return nil, errors.Errorf("the program gave volume %s the machine %q: want machine-N", r.VolumeID, r.Machine)
	}
	return &storage.ListedAttachment{VolumeId: r.VolumeID, Machine: machine}, nil
}

// info returns the volume that a result describes.
func (r result) info() (storage.VolumeInfo, error) {
	for _, id := range []struct{ name, value string }{
		{"volume-id", r.VolumeID}, {"hardware-id", r.HardwareID}, {"wwn", r.WWN},
	} {
		if err := checkText(id.name, id.value); err != nil {
			return storage.VolumeInfo{}, err
		}
	}
	if r.SizeMiB > maxSize {
		return storage.VolumeInfo{}, errors.Errorf("the program gave volume %s a size-mib of %d: the maximum on Linux is %d", r.VolumeID, r.SizeMiB, uint64(maxSize))
	}
	if r.VolumeID == "" {
		return storage.VolumeInfo{}, errors.New("the program gave neither a volume-id nor an error")
	}
	return storage.VolumeInfo{
		VolumeId:   r.VolumeID,
		HardwareId: r.HardwareID,
		WWN:        r.WWN,
		Size:       r.SizeMiB,
		Persistent: r.Persistent,
	}, nil
}

// attached returns the attachment that a result of a provider's program describes.
func (r result) attached(provider storage.ProviderType, volume names.VolumeTag, machine names.Tag) (*storage.VolumeAttachment, error) {
	a := r.Attachment
	if a == nil {
		return nil, errors.New("the program gave neither an attachment nor an error")
	}
	for _, text := range []struct{ name, value string }{
		{"device-name", a.DeviceName}, {"device-link", a.DeviceLink}, {"bus-address", a.BusAddress},
	} {
		if err := checkText(text.name, text.value); err != nil {
			return nil, err
		}
	}
	if a.DeviceName != "" && path.Clean("/dev/"+a.DeviceName) != "/dev/"+a.DeviceName {
		return nil, errors.Errorf("the program gave device-name %q: want the name without /dev/", a.DeviceName)
	}
	if a.DeviceLink != "" && (!path.IsAbs(a.DeviceLink) || path.Clean(a.DeviceLink) != a.DeviceLink) {
		return nil, errors.Errorf("the program gave device-link %q: want an absolute, clean path", a.DeviceLink)
	}
	attached := &storage.VolumeAttachment{
		Volume:  volume,
		Machine: machine,
		VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
			DeviceName: a.DeviceName,
			DeviceLink: a.DeviceLink,
			BusAddress: a.BusAddress,
			ReadOnly:   a.ReadOnly,
		},
	}
	if a.Plan != nil {
		if a.Plan.DeviceType == "" {
			return nil, errors.New("the program gave a plan without a device-type")
		}
		if err := checkText("device-type", string(a.Plan.DeviceType)); err != nil {
			return nil, err
		}
		attributes := a.Plan.Attributes
		if a.Plan.DeviceType == DeviceType {
			if _, ok := attributes[providerAttribute]; ok {
				return nil, errors.Errorf("the program gave a plan with the attribute %q, which is reserved", providerAttribute)
			}
			attributes = map[string]string{providerAttribute: string(provider)}
			maps.Copy(attributes, a.Plan.Attributes)
		}
		attached.PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: a.Plan.DeviceType, DeviceAttributes: attributes}
	}
	return attached, nil
}

// checkText rejects text that is too long or not printable, and could be misleading in a
// table.
func checkText(name, value string) error { return checkPrintable(name, value, maxID) }

func checkPrintable(name, value string, most int) error {
	if len(value) > most || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return fmt.Errorf("the program gave a %s that is longer than %d bytes, or not printable", name, most)
	}
	return nil
}
