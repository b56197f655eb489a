// Starts `convgen lsp` for .conv files.
const { execFile } = require("node:child_process");
const { commands, window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

/** What a command says when it cannot run; nothing when it can: a server whose input ends at once ends well. */
const obstacle = (command, args) =>
  new Promise((resolve) => {
    const cwd = workspace.workspaceFolders?.[0]?.uri.fsPath; // as the client has it
    const ended = (error, _, said) => {
      const missing = error?.code === "ENOENT" && `there is no command ${command}`;
      resolve(error && (missing || said.trim().replaceAll("\n", "; ") || error.message));
    };
    execFile(command, args, { cwd }, ended).stdin.end();
  });

async function start() {
  await client?.stop();
  client = undefined;
  const [command, ...args] = workspace.getConfiguration("convgen").get("command");
  const why = await obstacle(command, args);
  if (why) {
    const text = `The language server does not start: ${why}. See the setting convgen.command.`;
    if (await window.showErrorMessage(text, "Settings"))
      commands.executeCommand("workbench.action.openSettings", "convgen.command");
    return;
  }
  client = new LanguageClient("convgen", { command, args }, { documentSelector: [{ language: "conv" }] });
  await client.start();
}

exports.activate = (context) => {
  const changed = (event) => event.affectsConfiguration("convgen.command") && start();
  context.subscriptions.push(workspace.onDidChangeConfiguration(changed));
  return start();
};

exports.deactivate = () => client?.stop();
