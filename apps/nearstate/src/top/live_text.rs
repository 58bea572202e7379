//! A text that is shown live: the status of a cluster. The last line names the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::Paragraph;

use super::keys::{KeyCommand, Shown};

/// The last line of the screen.
const KEYS: &str = "q quits   p pauses   up and down scroll";

/// A text, and which part of it is shown.
#[derive(Debug)]
pub(super) struct LiveText {
    text: String,
    /// The first line that is shown.
    line: u16,
    is_paused: bool,
}

impl LiveText {
    pub(super) const fn new(text: String) -> Self {
        Self { text, line: 0, is_paused: false }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [body, foot] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Paragraph::new(self.text.as_str()).scroll((self.line, 0)), body);
        let keys = if self.is_paused { "paused: p continues   q quits" } else { KEYS };
        let style = Style::default().add_modifier(Modifier::REVERSED);
        frame.render_widget(Paragraph::new(keys).style(style), foot);
    }

    /// The last line can be the first one that is shown, and no line behind it.
    fn line_max(&self) -> u16 {
        u16::try_from(self.text.lines().count().saturating_sub(1)).unwrap_or(u16::MAX)
    }
}

impl Shown<String> for LiveText {
    fn take(&mut self, poll: String) {
        if !self.is_paused {
            self.text = poll;
            self.line = self.line.min(self.line_max());
        }
    }

    fn execute(&mut self, command: KeyCommand) -> bool {
        match command {
            KeyCommand::End => return true,
            KeyCommand::Pause => self.is_paused = !self.is_paused,
            KeyCommand::Up => self.line = self.line.saturating_sub(1),
            KeyCommand::Down => self.line = self.line.saturating_add(1).min(self.line_max()),
            // There is one order, and the keys are always shown.
            KeyCommand::Sort | KeyCommand::Help => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(text: &LiveText) -> String {
        let mut terminal = Terminal::new(TestBackend::new(40, 3)).unwrap();
        terminal.draw(|frame| text.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content.iter();
        cells.map(ratatui::buffer::Cell::symbol).collect()
    }

    #[test]
    fn keys_scroll_pause_and_end() {
        let mut text = LiveText::new("one\ntwo\nthree\n".to_owned());
        assert!(screen(&text).starts_with("one") && screen(&text).contains("q quits"));
        assert!(!text.execute(KeyCommand::Down));
        assert!(screen(&text).starts_with("two"), "{}", screen(&text));
        for _ in 0..5 {
            text.execute(KeyCommand::Down);
        }
        assert!(screen(&text).starts_with("three"));
        text.take("short".to_owned());
        assert!(screen(&text).starts_with("short"), "the text has no third line any more");
        text.execute(KeyCommand::Pause);
        text.take("newer".to_owned());
        assert!(screen(&text).starts_with("short") && screen(&text).contains("paused"));
        text.execute(KeyCommand::Pause);
        text.take("newer".to_owned());
        assert!(screen(&text).starts_with("newer"));
        assert!(text.execute(KeyCommand::End));
    }
}
