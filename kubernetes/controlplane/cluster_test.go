package controlplane_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	adminToken       = "admin-token"
	provisionerToken = "provisioner-token"
	// provisionerUser is who the provisioner is with the manifests in deploy.
	provisionerUser = "system:serviceaccount:stowage:stowage-provisioner"
	sidecarToken    = "sidecar-token"
	// sidecarUser is who the sidecars of the CSI driver are with the manifests in deploy/csi.
	sidecarUser = "system:serviceaccount:stowage-csi:stowage-csi"
)

// cluster is a control plane: etcd, an API server, and the controllers that bind claims.
type cluster struct {
	dir, bin            string
	etcdPort, apiPort   string
	etcd, api, managing *process
	client              kubernetes.Interface
	dynamic             dynamic.Interface
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// startCluster starts a control plane on loopback with its files in a directory.
func startCluster(ctx context.Context, dir, bin string) (*cluster, error) {
	c := &cluster{dir: dir, bin: bin}
	var err error
	if c.apiPort, err = freePort(); err != nil {
		return c, err
	}
	if err := c.writeFiles(); err != nil {
		return c, err
	}
	config := &rest.Config{
		Host: "https://127.0.0.1:" + c.apiPort, BearerToken: adminToken, QPS: 500, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return c, err
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return c, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return c, err
	}
	if err := c.startAPI(ctx); err != nil {
		return c, err
	}
	c.managing, err = start(c.dir, "kube-controller-manager", nil, filepath.Join(c.bin, "kube-controller-manager"),
		"--kubeconfig="+c.path("admin.kubeconfig"), "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=false",
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--controllers=persistentvolume-binder-controller,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller")
	return c, err
}

// writeFiles writes the keys, tokens and configuration files.
func (c *cluster) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	files := map[string]string{
		"accounts.key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"tokens.csv": adminToken + `,admin,1,"system:masters"` + "\n" +
			provisionerToken + "," + provisionerUser + `,2,"system:serviceaccounts"` + "\n" +
			sidecarToken + "," + sidecarUser + `,3,"system:serviceaccounts"` + "\n",
		"audit.yaml": `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
			"rules": [{"level": "Metadata", "users": ["` + provisionerUser + `"]}, {"level": "None"}]}`,
		"admin.kubeconfig":       c.kubeconfig(adminToken),
		"provisioner.kubeconfig": c.kubeconfig(provisionerToken),
		"sidecars.kubeconfig":    c.kubeconfig(sidecarToken),
	}
	for name, content := range files {
		if err := os.WriteFile(c.path(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) kubeconfig(token string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": [{"name": "test", "cluster": {"server": "https://127.0.0.1:%s", "insecure-skip-tls-verify": true}}],
		"users": [{"name": "test", "user": {"token": %q}}],
		"contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}`, c.apiPort, token)
}

func (c *cluster) startEtcd(ctx context.Context) (err error) {
	if c.etcdPort, err = freePort(); err != nil {
		return err
	}
	peer, err := freePort()
	if err != nil {
		return err
	}
	client, peerURL := "http://127.0.0.1:"+c.etcdPort, "http://127.0.0.1:"+peer
	c.etcd, err = start(c.dir, "etcd", []string{"ETCD_UNSUPPORTED_ARCH="}, "etcd", "--data-dir="+c.path("etcd"), "--log-level=error",
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peerURL,
		"--initial-advertise-peer-urls="+peerURL, "--initial-cluster=default="+peerURL, "--unsafe-no-fsync")
	if err != nil {
		return err
	}
	return c.ready(ctx, c.etcd, client+"/health")
}

// startAPI starts the API server, with further flags, and waits until it is ready.
func (c *cluster) startAPI(ctx context.Context, flags ...string) (err error) {
	args := append([]string{
		"--etcd-servers=http://127.0.0.1:" + c.etcdPort, "--bind-address=127.0.0.1", "--secure-port=" + c.apiPort,
		"--cert-dir=" + c.path("certificates"), "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file=" + c.path("accounts.key"),
		"--service-account-key-file=" + c.path("accounts.key"), "--token-auth-file=" + c.path("tokens.csv"),
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount", "--allow-privileged",
		"--audit-policy-file=" + c.path("audit.yaml"), "--audit-log-path=" + c.path("audit.log"),
	}, flags...)
	if c.api, err = start(c.dir, "kube-apiserver", nil, filepath.Join(c.bin, "kube-apiserver"), args...); err != nil {
		return err
	}
	return await(ctx, func(ctx context.Context) (bool, error) {
		select {
		case <-c.api.exited:
			return false, errors.New("kube-apiserver has ended: " + c.api.tail())
		default:
		}
		err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return err == nil, nil
	})
}

// restartAPI replaces the API server by one with further flags.
func (c *cluster) restartAPI(ctx context.Context, flags ...string) error {
	c.api.kill()
	return c.startAPI(ctx, flags...)
}

// ready waits until a server answers with success.
func (c *cluster) ready(ctx context.Context, p *process, url string) error {
	return await(ctx, func(ctx context.Context) (bool, error) {
		select {
		case <-p.exited:
			return false, errors.New(p.cmd.Path + " has ended: " + p.tail())
		default:
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	})
}

// compact makes etcd forget all but the latest revision.
func (c *cluster) compact(ctx context.Context) error {
	post := func(path, body string) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:"+c.etcdPort+path, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer func() { _ = response.Body.Close() }()
		var answer bytes.Buffer
		if _, err := answer.ReadFrom(response.Body); err != nil {
			return "", err
		}
		if response.StatusCode != http.StatusOK {
			return "", errors.New(response.Status + ": " + answer.String())
		}
		return answer.String(), nil
	}
	answer, err := post("/v3/kv/range", `{"key": "YQ=="}`)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(answer, `"revision":"`)
	revision, _, found := strings.Cut(rest, `"`)
	if !found {
		return errors.New("etcd answers " + answer)
	}
	_, err = post("/v3/kv/compaction", `{"revision": "`+revision+`", "physical": true}`)
	return err
}

// requests returns how many requests the provisioner has made, by verb and resource.
func (c *cluster) requests() (map[string]int, error) {
	content, err := os.ReadFile(c.path("audit.log"))
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(content)) {
		event, err := parseAudit(line)
		if err != nil {
			return nil, err
		}
		counts[event]++
	}
	return counts, nil
}

func (c *cluster) stop() error {
	var failed []error
	for _, p := range []*process{c.managing, c.api, c.etcd} {
		if p != nil {
			failed = append(failed, p.stop())
		}
	}
	return errors.Join(failed...)
}
