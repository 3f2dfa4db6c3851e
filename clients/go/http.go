package doorman

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"doorman.example/doorman/cores"
)

const (
	bodyBytesMax = 4 << 20
	idleMax      = 20 * time.Second // servers close connections that are idle for 30 s
	idleCount    = 16
)

// connections send the requests of the cores over HTTP/1.1.
type connections struct {
	http        *http.Client
	token       string
	tokenSource func() (string, error)
	header      http.Header
}

func newConnections(options *Options) (*connections, error) {
	config, err := tlsConfig(options)
	if err != nil {
		return nil, err
	}
	if options.Token != "" && options.TokenSource != nil {
		return nil, errors.New("Token, TokenSource: only one of them")
	}
	if err := checkToken(options.Token); err != nil {
		return nil, err
	}
	if err := checkHeader(options.Header); err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: config, IdleConnTimeout: idleMax,
		MaxIdleConnsPerHost: idleCount, DisableCompression: true}
	return &connections{
		http: &http.Client{Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // a master is named in the body
			}},
		token: options.Token, tokenSource: options.TokenSource, header: options.Header.Clone()}, nil
}

// checkToken checks that a header can have a token. The error does not show it, because it is logged.
func checkToken(token string) error {
	for _, char := range []byte(token) {
		if char <= ' ' || char > '~' {
			return errors.New("Token: must be ASCII without spaces and line breaks")
		}
	}
	return nil
}

func checkHeader(header http.Header) error {
	for name, values := range header {
		for _, value := range append([]string{name}, values...) {
			for _, char := range []byte(value) {
				if char < ' ' || char > '~' {
					return fmt.Errorf("Header: %q: must be printable ASCII", name)
				}
			}
		}
	}
	return nil
}

func tlsConfig(options *Options) (*tls.Config, error) {
	if options.CAFile == "" {
		return options.TLS.Clone(), nil
	}
	text, err := os.ReadFile(options.CAFile)
	if err != nil {
		return nil, fmt.Errorf("CAFile: %w", err)
	}
	config := options.TLS.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CAFile: %s has no certificates in PEM", options.CAFile)
	}
	return config, nil
}

// post sends a request of a core. It returns the status and the decoded body; nil: it is not JSON.
func (c *connections) post(ctx context.Context, request *cores.Request) (int, any, error) {
	text, err := json.Marshal(request.Message)
	if err != nil {
		return 0, nil, err
	}
	out, err := http.NewRequestWithContext(ctx, http.MethodPost,
		request.Address+"/v1/"+request.Method, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	if err := c.addHeaders(out); err != nil {
		return 0, nil, err
	}
	response, err := c.http.Do(out)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, bodyBytesMax+1))
	if err != nil {
		return 0, nil, err
	}
	if len(content) > bodyBytesMax {
		return 0, nil, errors.New("the response is too large")
	}
	var body any
	if json.Unmarshal(content, &body) != nil {
		body = nil
	}
	return response.StatusCode, body, nil
}

func (c *connections) addHeaders(out *http.Request) error {
	for name, values := range c.header {
		out.Header[name] = values
	}
	out.Header.Set("Content-Type", "application/json")
	// net/http sends a request again, if the server has closed an idle connection, only with such a
	// header. Without values it is not sent.
	out.Header["Idempotency-Key"] = nil
	token := c.token
	if c.tokenSource != nil {
		var err error
		if token, err = c.tokenSource(); err != nil {
			return fmt.Errorf("TokenSource: %w", err)
		}
		if err := checkToken(token); err != nil {
			return err
		}
	}
	if token != "" {
		out.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

func (c *connections) close() { c.http.CloseIdleConnections() }
